"""Models that think aloud before they answer: which marks enclose the thought, and telling it from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from inference.stops import overlap

if TYPE_CHECKING:
    from inference.chat_template import ChatTemplate
    from inference.vocabulary import Vocabulary

Part = Literal["thought", "answer"]


@dataclass(frozen=True)
class ThinkingMarks:
    """The texts around a thought; `skips` is what announces an answer without one.

    `are_tokens` tells whether the marks are made of tokens of their own, or plain text.
    """

    opens: str
    closes: str
    skips: str | None = None
    are_tokens: bool = False

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends where a thought begins, as from templates that write the opening mark themselves."""
        return prompt.rstrip().endswith(self.opens)


KNOWN_MARKS = (
    ThinkingMarks("<think>", "</think>"),
    ThinkingMarks("[THINK]", "[/THINK]"),
    ThinkingMarks("<seed:think>", "</seed:think>"),
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)
# The harmony format of gpt-oss: a reply is several messages, each in a channel.
HARMONY = ThinkingMarks(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
)


def find_thinking(template: ChatTemplate, vocabulary: Vocabulary) -> ThinkingMarks | None:
    """The marks that the vocabulary has as tokens or the template writes; None for a model without any."""
    added = vocabulary.control | vocabulary.user_defined
    if {"<|channel|>", "<|message|>", "<|start|>"} <= added.keys():
        return replace(HARMONY, are_tokens=True)
    for marks in KNOWN_MARKS:
        are_tokens = marks.opens in added and marks.closes in added
        if are_tokens or (marks.opens in template.sources and marks.closes in template.sources):
            return replace(marks, are_tokens=are_tokens)
    return None


@dataclass(frozen=True)
class Piece:
    """Some text of a reply, and whether it is thought or answer."""

    part: Part
    text: str


class ThoughtSplitter:
    """Splits the growing text of a reply at its marks.

    Marks are left out, and the white space that thought and answer begin with; a mark that is not complete yet is
    held back. A thought can begin only where nothing has been answered yet, so that an answer may speak of the marks.
    Without marks all text is answer, as it is. `thinking` says that the prompt has opened a thought already.
    """

    def __init__(self, marks: ThinkingMarks | None, thinking: bool = False) -> None:
        self._part: Part = "thought" if marks is not None and thinking else "answer"
        self._marks = marks
        self._held = ""
        self._said = False  # something other than white space, in the part that goes on

    def push(self, text: str) -> list[Piece]:
        """The pieces that are decided by now, in order; never empty ones."""
        self._held += text
        pieces: list[Piece] = []
        while (found := self._next_mark()) is not None:
            at, mark, part = found
            self._release(at, pieces)
            self._held = self._held[len(mark) :]
            self._part, self._said = part, False
        marks = self._active_marks()
        self._release(len(self._held) - max((overlap(self._held, mark) for mark in marks), default=0), pieces)
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back, when the reply has ended."""
        pieces: list[Piece] = []
        self._release(len(self._held), pieces)
        return pieces

    def _active_marks(self) -> Mapping[str, Part]:
        """The marks that count at the end of what was released, and the part that each begins."""
        if self._marks is None:
            return {}
        active: dict[str, Part] = {self._marks.closes: "answer"} if self._part == "thought" else {}
        if not self._said:
            active[self._marks.opens] = "thought"
            if self._marks.skips is not None:
                active[self._marks.skips] = "answer"
        return active

    def _next_mark(self) -> tuple[int, str, Part] | None:
        """Where the first mark is, the mark, and what it begins. Only a closing mark may come after other text."""
        found = [(at, mark, part) for mark, part in self._active_marks().items() if (at := self._held.find(mark)) >= 0]
        closes = self._marks.closes if self._marks is not None else ""
        return min((f for f in found if f[1] == closes or not self._held[: f[0]].strip()), default=None)

    def _release(self, count: int, pieces: list[Piece]) -> None:
        text, self._held = self._held[:count], self._held[count:]
        if not self._said and self._marks is not None:
            text = text.lstrip()
        if text:
            self._said = True
            pieces.append(Piece(self._part, text))
