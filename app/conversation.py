"""The conversation as the engine gets it, and the reply that is being written."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from app.sanitize import Sanitizer
from inference.events import Token
from inference.thinking import Part, Piece, ThinkingMarks, ThoughtSplitter


@dataclass(frozen=True)
class Turn:
    """A message. `content` is what the chat template gets; for a reply, `answer` is it without the thought."""

    role: Literal["user", "assistant"]
    content: str
    answer: str = ""


@dataclass(frozen=True)
class Conversation:
    """Turns alternate between user and assistant. `system` "" means no system message."""

    system: str = ""
    turns: tuple[Turn, ...] = ()

    def messages(self) -> tuple[dict[str, str], ...]:
        """The messages for the chat template."""
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, *({"role": turn.role, "content": turn.content} for turn in self.turns))

    def with_question(self, text: str) -> Conversation:
        """The conversation with one more message of the user."""
        return replace(self, turns=(*self.turns, Turn("user", text)))

    def with_reply(self, text: str, answer: str) -> Conversation:
        """The conversation with one more message of the model; `answer` is the part that is not thought."""
        return replace(self, turns=(*self.turns, Turn("assistant", text, answer)))

    def without_last(self) -> Conversation:
        """The conversation before its last turn."""
        return replace(self, turns=self.turns[:-1])

    def without_oldest(self, exchanges: int) -> tuple[Conversation, tuple[str, ...]]:
        """The conversation without its oldest questions and their replies, and the questions that were left out."""
        starts = [index for index, turn in enumerate(self.turns) if turn.role == "user"]
        end = starts[exchanges] if exchanges < len(starts) else len(self.turns)
        dropped = tuple(turn.content for turn in self.turns[:end] if turn.role == "user")
        return replace(self, turns=self.turns[end:]), dropped

    def last_answer(self) -> str | None:
        """The newest reply as the model wrote it, without its thought; None where there is no reply yet."""
        return next((turn.answer for turn in reversed(self.turns) if turn.role == "assistant"), None)


class Answer:
    """A reply that is being written: its raw text, and what of it is thought and answer, fit for the screen.

    `stopped` is set by who stops it. `thought_tokens` and `thought_s` are the length of the thought in tokens and in
    seconds, so far.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.stopped = False
        self.thought_tokens = 0
        self.thought_s = 0.0
        self._thought_began: float | None = None
        self._raw: list[str] = []
        self._answer: list[str] = []
        self._shown: dict[Part, list[str]] = {"thought": [], "answer": []}
        self._border = Sanitizer()
        self.begin(None, thinking=False)

    def begin(self, marks: ThinkingMarks | None, thinking: bool) -> None:
        """Before the first token: how the model marks a thought, and whether the prompt has opened one already."""
        self._splitter = ThoughtSplitter(marks, thinking)
        self._part: Part = "thought" if thinking else "answer"

    @property
    def raw(self) -> str:
        """All that the model has written."""
        return "".join(self._raw)

    @property
    def answer(self) -> str:
        """The answer alone, as the model wrote it."""
        return "".join(self._answer)

    def take(self, token: Token) -> None:
        """Keep the raw text, and what of it is decided for `release`."""
        self._raw.append(token.text)
        self._keep(self._splitter.push(token.text))
        if self._part == "thought":
            self.thought_tokens += token.id >= 0
            self._clock()

    def end(self) -> None:
        """No more comes: what was held back is decided."""
        self._keep(self._splitter.flush())
        self._shown[self._part].append(self._border.flush())

    def release(self) -> tuple[str, str]:
        """The thought and the answer, in their visible form, as far as they are decided since the last call."""
        thought, answer = "".join(self._shown["thought"]), "".join(self._shown["answer"])
        self._shown = {"thought": [], "answer": []}
        return thought, answer

    def _keep(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.part != self._part:
                self._shown[self._part].append(self._border.flush())
                if self._part == "thought":
                    self._clock()
                self._part = piece.part
            if piece.part == "answer":
                self._answer.append(piece.text)
            self._shown[piece.part].append(self._border.feed(piece.text))

    def _clock(self) -> None:
        now = time.monotonic()
        self._thought_began = now if self._thought_began is None else self._thought_began
        self.thought_s = now - self._thought_began
