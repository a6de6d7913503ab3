"""What the engine gets of a conversation, and the reply that is being written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.sanitize import Sanitizer
from app.store.records import Message, Node
from app.store.tree import Tree
from inference.events import Token
from inference.thinking import Part, Piece, ThinkingMarks, ThoughtSplitter

_THINKING = "thinking"


def engine_messages(system: str, messages: Iterable[Message]) -> tuple[dict[str, str], ...]:
    """Messages for the chat template. `system` "" means no system message."""
    first = ({"role": "system", "content": system},) if system else ()
    return (*first, *({"role": message.role, "content": message.text} for message in messages))


def oldest_exchanges(nodes: Sequence[Node], count: int) -> Sequence[Node]:
    """The oldest questions of a branch, so many of them, and their replies."""
    starts = [index for index, node in enumerate(nodes) if node.role == "user"]
    return nodes[: starts[count] if count < len(starts) else len(nodes)]


def split_thought(reply: Message) -> tuple[str, str]:
    """The thought and the answer of a reply, raw."""
    parts: dict[Part, list[str]] = {"thought": [], "answer": []}
    splitter = ThoughtSplitter(*_read_thinking(reply.settings))
    for piece in (*splitter.push(reply.text), *splitter.flush()):
        parts[piece.part].append(piece.text)
    return "".join(parts["thought"]), "".join(parts["answer"])


def thought_length(reply: Message) -> tuple[int, float]:
    """How many tokens and seconds the thought of a reply took; a file that was imported may say anything."""
    tokens, seconds = (
        value if isinstance(value := reply.figures.get(name), int | float) else 0
        for name in ("thought_tokens", "thought_s")
    )
    return int(tokens), float(seconds)


def _read_thinking(settings: Mapping[str, Any]) -> tuple[ThinkingMarks | None, bool]:
    """What `Answer.settings` wrote; a file that was imported may have anything in its place."""
    value = settings.get(_THINKING)
    if not isinstance(value, Mapping):
        return None, False
    opens, closes, skips = (value.get(name) for name in ("opens", "closes", "skips"))
    if not (isinstance(opens, str) and opens and isinstance(closes, str) and closes):
        return None, False
    return ThinkingMarks(opens, closes, skips if isinstance(skips, str) and skips else None), value.get(
        "opened"
    ) is True


class Answer:
    """A reply that is being written: its raw text, and what of it is thought and answer, fit for the screen.

    `question` is the id of the message that it answers, `message` its own as soon as there is any of it. `model` and
    `made_with` are the model's name and the settings, `given` is what it was given. `stopped` is set by who stops it.
    `thought_tokens` and `thought_s` are the length of the thought in tokens and in seconds. `begun` is the message that
    it goes on from, whose text it begins with as soon as anything follows. `empty` tells that nothing has come yet.
    """

    def __init__(
        self, number: int, question: int, model: str, made_with: Mapping[str, Any], begun: Message | None = None
    ) -> None:
        self.number = number
        self.question = question
        self.model = model
        self._made_with = made_with
        self._begun = begun
        self.message: int | None = None
        self.given: tuple[Message, ...] = ()
        self.stopped = False
        self.empty = True
        self.thought_tokens = 0
        self.thought_s = 0.0
        self._thought_before_s = 0.0
        self._thought_began: float | None = None
        self._unsaved: list[str] = []
        self._shown: dict[Part, list[str]] = {"thought": [], "answer": []}
        self._border = Sanitizer()
        self.begin(None, thinking=False)

    def begin(self, marks: ThinkingMarks | None, thinking: bool) -> None:
        """Before the first token: how the model marks a thought, and whether the prompt has opened one already."""
        self._marks, self._opened = marks, thinking
        self._splitter = ThoughtSplitter(marks, thinking)
        self._part: Part = "thought" if thinking else "answer"

    @property
    def settings(self) -> dict[str, Any]:
        """How the reply is made, and what `split_thought` needs to know."""
        if self._marks is None:
            return dict(self._made_with)
        marks = {"opens": self._marks.opens, "closes": self._marks.closes, "skips": self._marks.skips}
        return {**self._made_with, _THINKING: marks | {"opened": self._opened}}

    @property
    def figures(self) -> dict[str, Any]:
        """How long the thought was, if there was one."""
        return {"thought_tokens": self.thought_tokens, "thought_s": self.thought_s} if self.thought_tokens else {}

    def unsaved(self) -> str:
        """The raw text since the last call."""
        text = "".join(self._unsaved)
        self._unsaved.clear()
        return text

    def take(self, token: Token) -> None:
        """Keep the raw text, and what of it is decided for `release`."""
        self.empty = False
        self._take_begun()
        self._take_text(token.text)
        if self._part == "thought":
            self.thought_tokens += token.id >= 0
            self._clock()

    def end(self) -> None:
        """No more comes: what was held back is decided."""
        self._take_begun()
        self._keep(self._splitter.flush())
        self._shown[self._part].append(self._border.flush())

    def release(self) -> tuple[str, str]:
        """The thought and the answer, in their visible form, as far as they are decided since the last call."""
        thought, answer = "".join(self._shown["thought"]), "".join(self._shown["answer"])
        self._shown = {"thought": [], "answer": []}
        return thought, answer

    def _take_begun(self) -> None:
        if (begun := self._begun) is not None:
            self._begun = None
            self.thought_tokens, self._thought_before_s = thought_length(begun)
            self._take_text(begun.text)

    def _take_text(self, text: str) -> None:
        self._unsaved.append(text)
        self._keep(self._splitter.push(text))

    def _keep(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.part != self._part:
                self._shown[self._part].append(self._border.flush())
                if self._part == "thought":
                    self._clock()
                self._part = piece.part
            self._shown[piece.part].append(self._border.feed(piece.text))

    def _clock(self) -> None:
        now = time.monotonic()
        self._thought_began = now if self._thought_began is None else self._thought_began
        self.thought_s = self._thought_before_s + now - self._thought_began


def keep_answer(tree: Tree, answer: Answer) -> None:
    """Write what has come of a reply since the last time; its message begins with the first text."""
    if text := answer.unsaved():
        tree.grow(_message(tree, answer), text)


def finish_answer(tree: Tree, answer: Answer, reason: str, figures: Mapping[str, Any]) -> None:
    """End the message of a reply, all of whose text was kept."""
    tree.finish(_message(tree, answer), reason, {**figures, **answer.figures})


def _message(tree: Tree, answer: Answer) -> int:
    if answer.message is None:
        answer.message = tree.add("assistant", "", answer.question, answer.model, answer.settings).id
    return answer.message
