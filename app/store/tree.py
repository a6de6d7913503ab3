"""An open conversation: a tree of messages in memory, every change of which is also written to the history."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.store.records import SENT, HistoryError, Message, Node, Role, StoredConversation, new_id, title_of
from app.store.writes import AddConversation, AddMessage, Finish, Grow, SetSystem, Show, Write

_UNTITLED = "Untitled"


class Tree:
    """A conversation with all its branches. It belongs to the thread that makes it or opens it.

    A message is never changed or removed: an edited question, or another reply, is one more child of the same parent.
    `active` is the last message of the branch shown, None while there is no message. The places of all messages are
    known, their texts only once they were loaded (`Store.messages`). `write` takes the changes.
    """

    def __init__(
        self,
        id: int,
        write: Callable[[Tree, tuple[Write, ...]], None],
        system: str = "",
        active: int | None = None,
        nodes: Iterable[Node] = (),
    ) -> None:
        self.id = id
        self._write = write
        self._system = system
        self._active = active
        self._nodes: dict[int, Node] = {}
        self._children: dict[int | None, list[int]] = {}
        self._loaded: dict[int, Message] = {}
        for node in nodes:
            self._place(node)

    @property
    def active(self) -> int | None:
        """The last message of the branch shown."""
        return self._active

    @property
    def system(self) -> str:
        """The system prompt, "" for none."""
        return self._system

    def set_system(self, text: str) -> None:
        """Use another system prompt from now on."""
        self._system = text
        if self._nodes:
            self._write(self, (SetSystem(self.id, text),))

    def add(
        self,
        role: Role,
        text: str,
        parent: int | None,
        model: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> Message:
        """Add a message below `parent` (None: a first one) and show its branch. What a user wrote is finished at once.

        A reply is not: `grow` and `finish` it. Raises ValueError for `settings` that JSON cannot hold.
        """
        now = time.time()
        reason = SENT if role == "user" else None
        id = new_id(next(reversed(self._nodes), 0))  # the newest node comes last
        message = Message(id, parent, role, text, now, reason, model, _as_json(settings or {}))
        begin = () if self._nodes else (AddConversation(self.id, self._title(text), self._system, now),)
        self._place(Node(id, parent, role))
        self._loaded[id] = message
        self._active = id
        self._write(self, (*begin, AddMessage(self.id, message)))
        return message

    def grow(self, id: int, piece: str) -> None:
        """Add a piece to a reply that is not finished."""
        message = self._growing(id)
        self._loaded[id] = replace(message, text=message.text + piece)
        self._write(self, (Grow(id, piece),))

    def finish(self, id: int, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        """End a reply: it never changes again. Raises ValueError for `figures` that JSON cannot hold."""
        message = self._growing(id)
        message = replace(message, finish_reason=reason, figures=_as_json(figures or {}))
        self._loaded[id] = message
        self._write(self, (Finish(id, reason, message.figures),))

    def show(self, id: int) -> None:
        """Show the branch through the message `id`, down to the newest message below it."""
        while id in self._children:
            id = self._children[id][-1]
        if id != self._active:
            self._active = id
            self._write(self, (Show(self.id, id),))

    def path(self, end: int | None = None) -> tuple[Node, ...]:
        """The messages from a first one to `end`, by default the last of the branch shown."""
        path: list[Node] = []
        at = self._active if end is None else end
        while at is not None:
            path.append(self._nodes[at])
            at = path[-1].parent
        return tuple(reversed(path))

    def siblings(self, id: int) -> tuple[int, ...]:
        """The messages below the same parent, oldest first, with the message itself."""
        return tuple(self._children[self._nodes[id].parent])

    def children(self, id: int | None) -> tuple[int, ...]:
        """The messages below a message, oldest first; below None, the first messages."""
        return tuple(self._children.get(id, ()))

    def loaded(self, id: int) -> Message | None:
        """The message if its text is in memory: those added here, and those that `Store.messages` has read."""
        return self._loaded.get(id)

    def keep(self, messages: Iterable[Message]) -> None:
        """Take messages that were read. What is in memory already stays: it may be newer."""
        for message in messages:
            self._loaded.setdefault(message.id, message)

    def whole(self, stored: StoredConversation | None) -> StoredConversation:
        """All of the conversation: what is `stored` of it and what is only here. HistoryError where any is missing."""
        known = {message.id: message for message in stored.messages} if stored else {}
        known |= self._loaded
        missing = self._nodes.keys() - known.keys()
        if missing or self._active is None:
            raise HistoryError(f"{len(missing)} of {len(self._nodes)} messages cannot be read now; try again later.")
        messages = tuple(known[id] for id in sorted(known))
        title = stored.title if stored else self._title(messages[0].text)
        return StoredConversation(title, self._system, self._active, messages)

    def _title(self, text: str) -> str:
        return title_of(text) or _UNTITLED

    def _place(self, node: Node) -> None:
        if node.parent is not None and node.parent not in self._nodes:
            raise KeyError(f"There is no message {node.parent} to be the parent of another.")
        self._nodes[node.id] = node
        self._children.setdefault(node.parent, []).append(node.id)

    def _growing(self, id: int) -> Message:
        message = self._loaded[id]
        if message.finish_reason is not None:
            raise ValueError(f"The message {id} is finished ({message.finish_reason}) and never changes.")
        return message


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy as it will be read back: lists for tuples, text for keys."""
    copy: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    return copy
