"""Changes of the history as data, and how each is written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from app.store.records import Message
from app.store.schema import to_blob, transaction


@dataclass(frozen=True)
class AddConversation:
    """A conversation begins; its first message follows in the same step."""

    id: int
    title: str
    system: str
    created: float


@dataclass(frozen=True)
class AddMessage:
    """A message is added and becomes the end of the branch shown. A deleted conversation comes back."""

    conversation: int
    message: Message


@dataclass(frozen=True)
class Grow:
    """A reply goes on with `piece`."""

    message: int
    piece: str


@dataclass(frozen=True)
class Finish:
    """A reply has ended and never changes again."""

    message: int
    reason: str
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Show:
    """The branch that ends with `leaf` is shown."""

    conversation: int
    leaf: int


@dataclass(frozen=True)
class SetSystem:
    """The conversation has another system prompt."""

    conversation: int
    system: str


@dataclass(frozen=True)
class Rename:
    """The conversation has another title."""

    conversation: int
    title: str


@dataclass(frozen=True)
class Delete:
    """The conversation leaves the list at the time `at`; it is dropped a week later."""

    conversation: int
    at: float


@dataclass(frozen=True)
class Restore:
    """The conversation was not meant to be deleted."""

    conversation: int


Write = AddConversation | AddMessage | Grow | Finish | Show | SetSystem | Rename | Delete | Restore

_INDEX = "INSERT OR REPLACE INTO search SELECT id, fold(body) FROM message WHERE id = ?"


def write_all(connection: sqlite3.Connection, writes: Iterable[Write]) -> list[str]:
    """Write in one transaction; returns what the history can never take, such as a message of a dropped conversation.

    Raises sqlite3.Error where nothing was written and another attempt may succeed.
    """
    refused = []
    with transaction(connection):
        for write in _joined(writes):
            try:
                write_one(connection, write)
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                refused.append(f"{type(write).__name__}: {error}")
    return refused


def _joined(writes: Iterable[Write]) -> Iterator[Write]:
    """The writes, with what follows each other of growing replies joined by reply: each piece rewrites its row."""
    for growing, group in groupby(writes, lambda write: isinstance(write, Grow)):
        if not growing:
            yield from group
            continue
        pieces: dict[int, list[str]] = {}
        for write in group:
            assert isinstance(write, Grow)
            pieces.setdefault(write.message, []).append(write.piece)
        yield from (Grow(message, "".join(of_message)) for message, of_message in pieces.items())


def write_one(connection: sqlite3.Connection, write: Write) -> None:
    """Write one change; the caller's transaction makes it lasting."""
    match write:
        case AddConversation(id, title, system, created):
            connection.execute(
                "INSERT INTO conversation (id, title, system, created, changed) VALUES (?, ?, ?, ?, ?)",
                (id, to_blob(title), to_blob(system), created, created),
            )
        case AddMessage(conversation, message):
            connection.execute(
                "INSERT INTO message (id, conversation, parent, role, created, finish_reason, model, settings, figures,"
                " body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    message.id,
                    conversation,
                    message.parent,
                    message.role,
                    message.created,
                    message.finish_reason,
                    to_blob(message.model),
                    json.dumps(message.settings),
                    json.dumps(message.figures),
                    to_blob(message.text),
                ),
            )
            connection.execute(
                "UPDATE conversation SET active = ?, changed = max(changed, ?), deleted = NULL WHERE id = ?",
                (message.id, message.created, conversation),
            )
            connection.execute(_INDEX, (message.id,))
        case Grow(message, piece):
            connection.execute(
                "UPDATE message SET body = CAST(body || ? AS BLOB) WHERE id = ?", (to_blob(piece), message)
            )
            connection.execute(_INDEX, (message,))
        case Finish(message, reason, figures):
            connection.execute(
                "UPDATE message SET finish_reason = ?, figures = ? WHERE id = ?",
                (reason, json.dumps(figures), message),
            )
        case Show(conversation, leaf):
            connection.execute("UPDATE conversation SET active = ? WHERE id = ?", (leaf, conversation))
        case SetSystem(conversation, system):
            connection.execute("UPDATE conversation SET system = ? WHERE id = ?", (to_blob(system), conversation))
        case Rename(conversation, title):
            connection.execute("UPDATE conversation SET title = ? WHERE id = ?", (to_blob(title), conversation))
        case Delete(conversation, at):
            connection.execute("UPDATE conversation SET deleted = ? WHERE id = ?", (at, conversation))
        case Restore(conversation):
            connection.execute("UPDATE conversation SET deleted = NULL WHERE id = ?", (conversation,))
