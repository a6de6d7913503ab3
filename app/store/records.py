"""What the history is made of: frozen records, safe to pass between threads."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.errors import GlasschatError

Role = Literal["user", "assistant"]

SENT = "sent"
"""The finish reason of what a person wrote; replies have the engine's own, or None while they are not finished."""

_TITLE_CHARS = 60


class HistoryError(GlasschatError):
    """The history, or a file of a conversation, cannot be read or written."""


@dataclass(frozen=True)
class Summary:
    """A conversation in the list. Times are seconds since 1970; `changed` is when its newest message began."""

    id: int
    title: str
    created: float
    changed: float


@dataclass(frozen=True)
class Hit:
    """A conversation that a search found. `message` is its newest message that matches, None for the title alone."""

    conversation: Summary
    message: int | None
    excerpt: str


@dataclass(frozen=True)
class Node:
    """A message's place in the tree; `parent` is None for a first message. Ids grow with time, also down the tree."""

    id: int
    parent: int | None
    role: Role


@dataclass(frozen=True)
class Message:
    """A message. `text` is raw: whatever was typed or generated, to the byte.

    `finish_reason` is None for a reply that is still being written, or was when the program died. `settings` and
    `figures` hold what JSON can.
    """

    id: int
    parent: int | None
    role: Role
    text: str
    created: float
    finish_reason: str | None = None
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredConversation:
    """A whole conversation. `messages` are in the order of their ids; `active` is the last one of the branch shown."""

    title: str
    system: str
    active: int
    messages: tuple[Message, ...]

    def branch(self) -> tuple[Message, ...]:
        """The messages of the branch shown, from the first to the last."""
        by_id = {message.id: message for message in self.messages}
        branch: list[Message] = []
        at: int | None = self.active
        while at is not None:
            branch.append(by_id[at])
            at = by_id[at].parent
        return tuple(reversed(branch))


def new_id(after: int = 0) -> int:
    """An id greater than `after`: microseconds since 1970 and 10 random bits, so that programs do not collide."""
    return max(after + 1, (time.time_ns() // 1000 << 10) | secrets.randbits(10))


def reason(error: Exception) -> str:
    """Why something failed, without the error number and the file's name that an OSError adds."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def title_of(text: str) -> str:
    """A title of one line from the first words of `text`, "" if it has none."""
    line = " ".join(text[: 20 * _TITLE_CHARS].split())
    if len(line) <= _TITLE_CHARS:
        return line
    cut = line[:_TITLE_CHARS]
    words, space, _ = cut.rpartition(" ")
    return (words if space and len(words) > _TITLE_CHARS // 2 else cut) + "…"


def file_name(title: str) -> str:
    """A name for a file out of a title: its letters and digits in small, with hyphens between."""
    words = re.findall(r"\w+", title.casefold())
    return "-".join(words)[:_TITLE_CHARS].strip("-") or "conversation"
