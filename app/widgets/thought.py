"""What a model thinks before it answers: one line where folded, and below it the thought where unfolded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip

from app.theme import Look
from app.units import format_count, format_seconds
from app.widgets.code import TAB_SIZE
from app.widgets.lines import inner_width, strips

_INDENT = 2
_HINT_CHARS = 400  # more than a line of the screen


@dataclass(frozen=True)
class Thought:
    """A thought that has ended. `answered` tells whether an answer followed."""

    text: str
    tokens: int
    seconds: float
    answered: bool
    unfolded: bool


def thought_strips(thought: Thought, width: int, look: Look, console: Console) -> list[Strip]:
    """A thought laid out for `width` cells."""
    length = f"{format_seconds(thought.seconds)}, {format_count(thought.tokens, 'token')}"
    line = f"Thought for {length}{'' if thought.answered else '; no answer'}"
    body = _Body(width, look, console)
    if thought.unfolded:
        body.feed(thought.text.rstrip())
    return [_head(line, thought.unfolded, width, look), *body.strips()]


class GrowingThought:
    """A thought that the model is having. Its text is looked at once, whatever the length that it has reached."""

    def __init__(self) -> None:
        self.unfolded = False
        self.tokens = 0
        self.seconds = 0.0
        self._pieces: list[str] = []
        self._tail = ""
        self._body: _Body | None = None
        self._in_body = 0  # how many pieces are

    def feed(self, text: str, tokens: int, seconds: float) -> None:
        """Add text, already sanitised; `tokens` and `seconds` count from the thought's beginning."""
        self._pieces.append(text)
        self._tail = (self._tail + text)[-_HINT_CHARS:]
        self.tokens, self.seconds = tokens, seconds

    def ended(self, answered: bool) -> Thought:
        """The whole of it, once no more comes."""
        return Thought("".join(self._pieces), self.tokens, self.seconds, answered, self.unfolded)

    def strips(self, width: int, look: Look, console: Console) -> list[Strip]:
        """What there is, laid out for `width` cells: where folded, one line, which ends with the last words."""
        line = f"Thinking… {format_count(self.tokens, 'token')}, {format_seconds(self.seconds)}"
        if not self.unfolded:
            self._body = None
            return [_head(line, False, width, look, hint=self._tail)]
        if self._body is None or not self._body.is_for(width, look):
            self._body, self._in_body = _Body(width, look, console), 0
        self._body.feed("".join(self._pieces[self._in_body :]))
        self._in_body = len(self._pieces)
        return [_head(line, True, width, look), *self._body.strips()]


class _Body:
    """Plain text in lines of one width; only the last of them is wrapped again as the text grows."""

    def __init__(self, width: int, look: Look, console: Console) -> None:
        self._width, self._look, self._console = width, look, console
        self._settled: list[Strip] = []
        self._rest = ""

    def is_for(self, width: int, look: Look) -> bool:
        """Whether the lines have that width and that look."""
        return (width, look) == (self._width, self._look)

    def feed(self, text: str) -> None:
        """Add text."""
        *complete, self._rest = (self._rest + text.replace("\t", " " * TAB_SIZE)).split("\n")
        for line in complete:
            self._settled += self._drawn(self._wrapped(line))
        *settled, _ = self._wrapped(self._rest)
        self._settled += self._drawn(settled)
        for line in settled:
            # Wrapping leaves out spaces at a line's end; the next line begins with a word.
            self._rest = self._rest.removeprefix(line).lstrip(" ")

    def strips(self) -> list[Strip]:
        """All lines so far."""
        return [*self._settled, *self._drawn([self._rest] if self._rest else [])]

    def _wrapped(self, line: str) -> list[str]:
        inner = inner_width(self._width) - _INDENT
        return [part.plain for part in Text(line).wrap(self._console, inner, overflow="fold")] or [""]

    def _drawn(self, lines: list[str]) -> Iterator[Strip]:
        segments = ([Segment(" " * _INDENT + line, self._look.muted)] if line.strip() else [] for line in lines)
        return strips(segments, self._width, self._look)


def _head(line: str, unfolded: bool, width: int, look: Look, hint: str = "") -> Strip:
    """The line that stands for a thought, with the end of the last line of `hint` as far as there is room."""
    text, inner = f"{'▾' if unfolded else '▸'} {line}", inner_width(width)
    last = " ".join(next((part for part in reversed(hint.split("\n")) if part.strip()), "").split())
    room = inner - cell_len(text) - len(" · ")
    if cell_len(last) > room:
        last = "…" + _last_cells(last, room - 1) if room > 1 else ""
    shown = f"{text} · {last}" if last else text
    (strip,) = strips([[Segment(set_cell_size(shown, min(inner, cell_len(shown))), look.muted)]], width, look)
    return strip


def _last_cells(text: str, width: int) -> str:
    """The end of `text`, at most `width` cells of it."""
    end = text[-width:]
    while cell_len(end) > width:
        end = end[1:]
    return end.lstrip()
