"""What is read from the history."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from app.store.records import HistoryError, Hit, Message, Node, StoredConversation, Summary
from app.store.schema import fold, from_blob

_SUMMARY = "conversation.id, conversation.title, conversation.created, conversation.changed"
_MESSAGE = "id, parent, role, body, created, finish_reason, model, settings, figures"
_EXCERPT_CHARS = 80


def conversations(connection: sqlite3.Connection, before: Summary | None, limit: int) -> tuple[Summary, ...]:
    """At most `limit` conversations, newest first: the newest, or those that follow `before` in the list."""
    changed, id = (before.changed, before.id) if before else (1e18, 0)
    rows = connection.execute(
        f"SELECT {_SUMMARY} FROM conversation WHERE deleted IS NULL AND (changed, id) < (?, ?) "
        "ORDER BY changed DESC, id DESC LIMIT ?",
        (changed, id, limit),
    )
    return tuple(_summary(row) for row in rows)


def search(connection: sqlite3.Connection, text: str, limit: int) -> tuple[Hit, ...]:
    """At most `limit` conversations with a message, or else a title, that has every word of `text`, newest first.

    The texts are scanned: what is found is right for any script and for parts of words, and 50 MB take a tenth of a
    second (docs/decisions.md).
    """
    words = fold(text).split()
    if not words:
        return ()
    has_all = " AND ".join("instr({0}, ?)" for _ in words)
    # The order of the join is kept: the newest text first, and no conversation looked up before its text matched.
    in_texts = connection.execute(
        f"SELECT {_SUMMARY}, search.message FROM search CROSS JOIN message ON message.id = search.message "
        "CROSS JOIN conversation ON conversation.id = message.conversation "
        f"WHERE {has_all.format('folded')} AND deleted IS NULL ORDER BY search.message DESC",
        words,
    )
    in_titles = connection.execute(
        f"SELECT {_SUMMARY}, NULL FROM conversation WHERE deleted IS NULL AND {has_all.format('fold(title)')} "
        "ORDER BY changed DESC, id DESC",
        words,
    )
    found: dict[Summary, int | None] = {}
    for *summary, message in chain(in_texts, in_titles):
        if len(found) == limit:
            break
        found.setdefault(_summary(summary), message)
    texts = {message.id: message.text for message in messages(connection, [id for id in found.values() if id])}
    return tuple(
        Hit(summary, message, _excerpt(texts[message], words[0]) if message else "")
        for summary, message in found.items()
    )


def title(connection: sqlite3.Connection, conversation: int) -> str:
    """The title of a conversation, "" where there is none."""
    row = connection.execute("SELECT title FROM conversation WHERE id = ?", (conversation,)).fetchone()
    return from_blob(row[0]) if row else ""


def questions(connection: sqlite3.Connection, limit: int) -> tuple[str, ...]:
    """The newest `limit` messages that a person sent in any conversation, the newest last."""
    rows = connection.execute(
        "SELECT body FROM message CROSS JOIN conversation ON conversation.id = message.conversation "
        "WHERE role = 'user' AND deleted IS NULL ORDER BY message.id DESC LIMIT ?",
        (limit,),
    )
    return tuple(from_blob(body) for (body,) in rows)[::-1]


def tree_rows(connection: sqlite3.Connection, conversation: int) -> tuple[str, int, list[Node]]:
    """The system prompt, the end of the branch shown, and every message's place. HistoryError where it is gone."""
    _, system, active = _conversation_row(connection, conversation)
    rows = connection.execute(
        "SELECT id, parent, role FROM message WHERE conversation = ? ORDER BY id", (conversation,)
    )
    return system, active, [Node(*row) for row in rows]


def messages(connection: sqlite3.Connection, ids: Iterable[int]) -> list[Message]:
    """The messages with these ids that exist, in the order of their ids."""
    wanted = json.dumps(sorted(ids))
    rows = connection.execute(
        f"SELECT {_MESSAGE} FROM message WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id", (wanted,)
    )
    return [_message(row) for row in rows]


def whole(connection: sqlite3.Connection, conversation: int) -> StoredConversation:
    """All of a conversation. HistoryError where it is gone."""
    title, system, active = _conversation_row(connection, conversation)
    rows = connection.execute(f"SELECT {_MESSAGE} FROM message WHERE conversation = ? ORDER BY id", (conversation,))
    return StoredConversation(title, system, active, tuple(_message(row) for row in rows))


def _conversation_row(connection: sqlite3.Connection, conversation: int) -> tuple[str, str, int]:
    row = connection.execute("SELECT title, system, active FROM conversation WHERE id = ?", (conversation,)).fetchone()
    if row is None:
        raise HistoryError("This conversation is no longer in the history.")
    title, system, active = row
    return from_blob(title), from_blob(system), active


def _summary(row: Sequence[Any]) -> Summary:
    id, title, created, changed = row
    return Summary(id, from_blob(title), created, changed)


def _message(row: Sequence[Any]) -> Message:
    id, parent, role, body, created, finish_reason, model, settings, figures = row
    return Message(
        id,
        parent,
        role,
        from_blob(body),
        created,
        finish_reason,
        from_blob(model),
        json.loads(settings),
        json.loads(figures),
    )


def _excerpt(text: str, word: str) -> str:
    """The line of `text` that has `word`, cut to what is around it."""
    for line in text.splitlines():
        if (at := fold(line).find(word)) >= 0:
            start = max(0, min(at - _EXCERPT_CHARS // 4, len(line) - _EXCERPT_CHARS))
            end = start + _EXCERPT_CHARS
            return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")
    return " ".join(text[:_EXCERPT_CHARS].split())
