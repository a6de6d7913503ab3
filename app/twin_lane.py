"""What is shown of one lane of a twin turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from app.candidates import Candidate
from app.conversation import Answer
from app.notes import reason_words
from app.theme import Look
from app.twin_gap import TwinGap
from app.units import format_bytes, format_count
from app.widgets.lane_text import Kind
from inference.events import Stats, Timings, Token

END = "∎"
"""Marks the end of a reply where the other lane goes on."""


@dataclass(frozen=True)
class LaneHeading:
    """What a lane runs: `title` is the model, `setup` how it runs, `differs` in what it is not as the chat is.

    `shares` says that its weights are those of the other lane.
    """

    title: str
    setup: str
    differs: str = ""
    shares: bool = False


@dataclass(frozen=True)
class _Piece:
    position: int
    text: str
    kind: Kind


class Lane(Candidate):
    """The reply of one lane, and the pieces of it that are not on the screen yet."""

    def __init__(self, number: int, answer: Answer, about: LaneHeading) -> None:
        super().__init__(number, answer)
        self.about = about
        self._pieces: list[_Piece] = []
        self._stats: Stats | None = None
        self._timings = Timings()
        self._marked = False

    def take(self, token: Token) -> None:
        """Keep a token."""
        position = self.tokens
        super().take(token)
        self._keep(position)

    def end(self, reason: str) -> None:
        """No more comes."""
        super().end(reason)
        self._keep(self.tokens)

    def measure(self, figures: Stats | Timings) -> None:
        """New figures."""
        if isinstance(figures, Stats):
            self._stats = figures
        self._timings = figures.timings if isinstance(figures, Stats) else figures

    def release(self, gap: TwinGap) -> Iterator[tuple[str, Kind]]:
        """The pieces that can be shown since the last call: those of which it is known whether the lanes part there."""
        while self._pieces and (gap.compared(self._pieces[0].position) or self.ended):
            piece = self._pieces.pop(0)
            parted = gap.diverged is not None and piece.position >= gap.diverged and not self._marked
            self._marked |= parted
            yield piece.text, "mark" if parted else piece.kind
        if self.ended and not self._pieces and not self._marked and gap.diverged == self.tokens:
            self._marked = True
            yield END, "mark"

    def heading(self, look: Look) -> Text:
        """The model and its setup."""
        text = Text(self.about.title, look.primary)
        text.append(f"\n{self.about.setup}", look.muted)
        differs = self.about.differs
        return text.append(f"\n{differs or 'as the chat is'}", look.accent if differs else look.muted)

    def figures(self, look: Look) -> Text:
        """Speed and memory, in two lines."""
        timings, stats = self._timings, self._stats
        parts = [f"{timings.decode_tps:.1f} tok/s"] if timings.decode_tps else []
        parts += [format_count(self.tokens, "token")] if self.tokens else []
        parts += [reason_words(self.reason)] if self.ended else []
        line = Text(" · ".join(filter(None, parts)), look.text)
        if stats is not None:
            weights = "shared" if self.about.shares else format_bytes(stats.memory.weights_bytes)
            line.append(f"\nKV {format_bytes(stats.kv.allocated_bytes)} · weights {weights}", look.muted)
        return line

    def _keep(self, position: int) -> None:
        thought, text = self.answer.release()
        pieces: list[tuple[str, Kind]] = [(thought, "thought"), (text, "text")]
        self._pieces += [_Piece(position, piece, kind) for piece, kind in pieces if piece]
