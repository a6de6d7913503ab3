"""A stored message as the items that the transcript shows."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversation import split_thought, thought_length
from app.notes import branch_mark, figures_line, reply_name
from app.sanitize import visible
from app.store.records import Message
from app.widgets.markdown_blocks import MarkdownStream, feed_all
from app.widgets.render import Item, Note, NoteKind
from app.widgets.thought import Thought

_SHOWN_CHARS = 20_000


def message_items(message: Message, place: tuple[int, int], unfolded: bool) -> list[Item]:
    """The items of a message, which is that one of so many in its place, with thoughts folded or unfolded."""
    return list(_question(message, place) if message.role == "user" else _reply(message, place, unfolded))


def note_items(kind: NoteKind, text: str, why: str = "are not shown") -> Iterator[Note]:
    """A note, of which only so much is shown as anybody reads; `why` tells of the rest."""
    yield Note(kind, visible(text[:_SHOWN_CHARS]))
    if (rest := len(text) - _SHOWN_CHARS) > 0:
        yield Note("figures", f"… {rest:,} more characters {why}", gap=False)


def question_items(text: str, place: tuple[int, int]) -> Iterator[Note]:
    """The items of a question."""
    yield from note_items("user", text, "are part of the message")
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
    yield from feed_all(stream, answer, ended=True)
    made_with = (message.settings.get(name) for name in ("twin", "loras"))
    words = " · ".join(visible(each) for each in made_with if isinstance(each, str) and each)
    yield Note("figures", figures_line(message.finish_reason, message.figures, words))
