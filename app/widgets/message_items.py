"""A stored message as the items that the transcript shows."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversation import split_thought, thought_length
from app.notes import branch_mark, figures_line, reply_name
from app.sanitize import visible
from app.store.records import Message
from app.widgets.markdown_blocks import MarkdownStream
from app.widgets.render import Item, Note
from app.widgets.thought import Thought

_PIECE_CHARS = 2000  # a text is cut into blocks as if it grew, so that a very long line is too


def message_items(message: Message, place: tuple[int, int], unfolded: bool) -> list[Item]:
    """The items of a message, which is that one of so many in its place, with thoughts folded or unfolded."""
    return list(_question(message, place) if message.role == "user" else _reply(message, place, unfolded))


def question_items(text: str, place: tuple[int, int]) -> Iterator[Note]:
    """The items of a question."""
    yield Note("user", visible(text))
    if mark := branch_mark(place):
        yield Note("figures", mark, gap=False)


def _question(message: Message, place: tuple[int, int]) -> Iterator[Item]:
    yield from question_items(message.text, place)


def _reply(message: Message, place: tuple[int, int], unfolded: bool) -> Iterator[Item]:
    thought, answer = (visible(part) for part in split_thought(message))
    yield Note("name", reply_name(visible(message.model) or "Reply", place, "continued_after" in message.settings))
    if thought:
        yield Thought(thought, *thought_length(message), bool(answer), unfolded)
    stream = MarkdownStream(gap=bool(thought))
    for start in range(0, len(answer), _PIECE_CHARS):
        yield from stream.feed(answer[start : start + _PIECE_CHARS], start + _PIECE_CHARS >= len(answer))
    adapters = message.settings.get("loras")
    words = visible(adapters) if isinstance(adapters, str) else ""
    yield Note("figures", figures_line(message.finish_reason, message.figures, words))
