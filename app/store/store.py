"""The history behind a thread of its own: changes are handed over at once and written soon, reads are awaited."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from app.store import reads
from app.store.exchange import as_new, read_export, write_export
from app.store.records import HistoryError, Hit, Message, StoredConversation, Summary, new_id, reason, title_of
from app.store.schema import connect, transaction
from app.store.tree import Tree
from app.store.writes import AddMessage, Delete, Grow, Rename, Restore, Write, write_all, write_one
from app.units import format_count

GROWTH_PERIOD_S = 0.5  # what a kill can cost: half of what is promised
_RETRY_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class _Read(Generic[T]):
    run: Callable[[], T]
    result: Future[T]


@dataclass(frozen=True)
class _Change:
    """`tree` is the conversation that made it: it stays in memory until the change is written."""

    tree: Tree | None
    writes: tuple[Write, ...]


class Store:
    """The history in the file `path`, which several programs may use at once; None keeps it in memory only.

    Changes never wait and never fail: while the file cannot be written they are kept in memory, tried again every few
    seconds, and told of by `drain`; lists and searches lack them so long.
    All coroutines raise HistoryError where something cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[_Change | _Read | None] = queue.SimpleQueue()
        self._notices: deque[str] = deque()
        self._closed = False
        self._unsaved: list[_Change] = []
        self._failing = False
        self._grown = 0.0
        self._due = 0.0
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    # Called from the interface

    def new(self, system: str = "") -> Tree:
        """A new conversation; it enters the history with its first message."""
        return Tree(new_id(), self._change, system)

    async def open(self, conversation: int) -> Tree:
        """A conversation with the places of all its messages, but not their texts."""
        return await self._read(lambda: self._open(conversation))

    async def messages(self, tree: Tree, ids: Iterable[int]) -> tuple[Message, ...]:
        """The messages `ids` of `tree`; those whose text is not in memory yet are read, and kept there."""
        ids = tuple(ids)
        missing = [id for id in ids if tree.loaded(id) is None]
        if missing:
            tree.keep(await self._read(lambda: reads.messages(self._connected(), missing)))
        found = tuple(message for id in ids if (message := tree.loaded(id)) is not None)
        if len(found) < len(ids):
            raise HistoryError("This conversation is no longer in the history.")
        return found

    async def conversations(self, before: Summary | None = None, limit: int = 50) -> tuple[Summary, ...]:
        """The newest conversations, or those that follow `before` in the list; fewer than `limit` at its end."""
        return await self._read(lambda: reads.conversations(self._connected(), before, limit))

    async def search(self, text: str, limit: int = 50) -> tuple[Hit, ...]:
        """The newest conversations with a message, or a title, that has every word of `text`."""
        return await self._read(lambda: reads.search(self._connected(), text, limit))

    async def title(self, conversation: int) -> str:
        """The title of a conversation, "" for one that is not in the history."""
        return await self._read(lambda: reads.title(self._connected(), conversation))

    async def questions(self, limit: int = 100) -> tuple[str, ...]:
        """The newest messages that the person sent in any conversation, the newest last."""
        return await self._read(lambda: reads.questions(self._connected(), limit))

    def rename(self, conversation: int, title: str) -> None:
        """Give a conversation another title; one without any letter changes nothing."""
        if line := title_of(title):
            self._change(None, (Rename(conversation, line),))

    def delete(self, conversation: int) -> None:
        """Take a conversation off the list. It can be restored for a week."""
        self._change(None, (Delete(conversation, time.time()),))

    def restore(self, conversation: int) -> None:
        """Undo `delete`."""
        self._change(None, (Restore(conversation),))

    async def export(self, conversation: int, path: Path) -> None:
        """Write a conversation to a new file: the branch shown if it ends with .md, all of it with .json."""
        stored, tree = await self._read(lambda: self._whole(conversation))
        if tree is not None:
            stored = tree.whole(stored)
        assert stored is not None
        await asyncio.to_thread(write_export, stored, path)

    async def import_json(self, path: Path) -> int:
        """Add the conversation of an exported JSON file; returns its id. A bad file changes nothing."""
        stored = await asyncio.to_thread(read_export, path)
        id, writes = as_new(stored)
        return await self._read(lambda: self._import(id, writes))

    def drain(self) -> list[str]:
        """What a person should know since the last call, in whole sentences."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def close(self, timeout: float = 5.0) -> str:
        """Write what is left and end the thread, waiting at most `timeout` seconds; tells what could not be written."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout)
        if not self._unsaved:
            return ""
        lost = sum(isinstance(write, AddMessage) for change in self._unsaved for write in change.writes)
        return f"The history in {self._path} lacks the newest changes, with {format_count(lost, 'message')}."

    def _change(self, tree: Tree | None, writes: tuple[Write, ...]) -> None:
        self._queue.put(_Change(tree, writes))

    async def _read(self, run: Callable[[], T]) -> T:
        if self._closed:
            raise HistoryError("The history is closed.")
        result: Future[T] = Future()
        self._queue.put(_Read(run, result))
        return await asyncio.wrap_future(result)

    # On the thread

    def _run(self) -> None:
        while True:
            wait = max(0.0, self._due - time.monotonic()) if self._unsaved else None
            try:
                item = self._queue.get(timeout=wait)
            except queue.Empty:
                self._save()
                continue
            match item:
                case _Change():
                    self._receive(item)
                case _Read():
                    if not self._failing:
                        self._save()
                    self._answer(item)
                case None:
                    break
        self._save()
        if self._connection is not None:
            self._connection.close()

    def _receive(self, change: _Change) -> None:
        growth = all(isinstance(write, Grow) for write in change.writes)
        due = self._grown + GROWTH_PERIOD_S if growth else 0.0
        if not self._failing:
            self._due = min(due, self._due) if self._unsaved else due
        self._unsaved.append(change)

    def _save(self) -> None:
        if not self._unsaved:
            return
        try:
            refused = write_all(self._connected(), (write for change in self._unsaved for write in change.writes))
        except Exception as error:  # whatever it is, the changes stay, and the thread lives on to try again
            self._disconnect()
            self._due = time.monotonic() + _RETRY_S
            if not self._failing:
                self._notices.append(
                    f"{self._explain(error)} The chat goes on in memory, and is saved as soon as that works."
                )
            self._failing = True
            return
        self._notices.extend(f"The history in {self._path} refused a change: {each}." for each in refused)
        if self._failing:
            self._notices.append("The history is saved again.")
        self._failing = False
        self._unsaved.clear()
        self._grown = time.monotonic()

    def _answer(self, read: _Read[T]) -> None:
        if not read.result.set_running_or_notify_cancel():
            return
        try:
            read.result.set_result(read.run())
        except (OSError, sqlite3.Error) as error:
            self._disconnect()
            read.result.set_exception(HistoryError(self._explain(error)))
        except Exception as error:
            read.result.set_exception(error)

    def _open(self, conversation: int) -> Tree:
        if (tree := self._unsaved_tree(conversation)) is not None:
            return tree
        return Tree(conversation, self._change, *reads.tree_rows(self._connected(), conversation))

    def _whole(self, conversation: int) -> tuple[StoredConversation | None, Tree | None]:
        tree = self._unsaved_tree(conversation)
        try:
            return reads.whole(self._connected(), conversation), tree
        except (HistoryError, OSError, sqlite3.Error):
            if tree is None:
                raise
            return None, tree

    def _import(self, conversation: int, writes: tuple[Write, ...]) -> int:
        connection = self._connected()
        with transaction(connection):
            for write in writes:
                write_one(connection, write)
        return conversation

    def _unsaved_tree(self, conversation: int) -> Tree | None:
        trees = (change.tree for change in self._unsaved)
        return next((tree for tree in trees if tree is not None and tree.id == conversation), None)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _explain(self, error: Exception) -> str:
        if isinstance(error, HistoryError):
            return str(error)
        return f"The history in {self._path} cannot be used: {reason(error)}."
