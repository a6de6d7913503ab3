"""The branch of a conversation in the transcript: its last screens at once, older messages as one scrolls up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from textual.worker import Worker

from app.store.records import HistoryError, Message, Node
from app.store.store import Store
from app.store.tree import Tree
from app.widgets.message_items import message_items
from app.widgets.transcript import Transcript

_CHUNK = 20  # messages


class BranchView:
    """Puts stored messages into the transcript. `fail` is told of what could not be read."""

    def __init__(self, store: Store, transcript: Transcript, fail: Callable[[str], None]) -> None:
        self._store = store
        self._transcript = transcript
        self._fail = fail
        self._work: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def busy(self) -> bool:
        """Whether what was asked for is not all there yet."""
        return self._work is not None

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work that changes what is shown, in place of such work that still runs."""
        self._work = work

        async def run() -> None:
            try:
                await work()
            except HistoryError as error:
                self._fail(str(error))
            finally:
                if self._work is work:
                    self._work = None

        _: Worker[None] = self._transcript.run_worker(run, group="branch", exclusive=True)

    def older(self, tree: Tree) -> None:
        """Show some more messages above, if there are any, unless something else is being shown."""
        if not self.busy:
            self.begin(lambda: self._show_older(tree))

    async def show(self, tree: Tree) -> None:
        """Show the end of the branch, two screens of it, below what is there."""
        nodes = tree.path()
        end = len(nodes)
        while end > 0 and self._transcript.line_count < 2 * self._transcript.size.height:
            start = max(0, end - _CHUNK)
            await self._put(tree, nodes[start:end], above=end < len(nodes))
            end = start

    async def show_from(self, tree: Tree, message: int) -> None:
        """Show the branch from that message on, below what is shown."""
        nodes = tree.path()
        start = next(index for index, node in enumerate(nodes) if node.id == message)
        for begin in range(start, len(nodes), _CHUNK):
            await self._put(tree, nodes[begin : begin + _CHUNK], above=False)

    async def show_back_to(self, tree: Tree, message: int) -> None:
        """Show older messages until that one, which is in the branch, is shown."""
        while not self._transcript.shows(message):
            await self._show_older(tree)

    async def _show_older(self, tree: Tree) -> None:
        if await self._transcript.show_above():
            return
        nodes = tree.path()
        shown = self._transcript.first_message
        first = next((index for index, node in enumerate(nodes) if node.id == shown), 0)
        if first > 0:
            await self._put(tree, nodes[max(0, first - _CHUNK) : first], above=True)

    async def _put(self, tree: Tree, nodes: Sequence[Node], above: bool) -> None:
        messages = await self._store.messages(tree, [node.id for node in nodes])
        unfolded = self._transcript.unfolded
        placed = [(message, place(tree, message.id)) for message in messages]
        await self._transcript.put(await asyncio.to_thread(_all_items, placed, unfolded), above)


def _all_items(placed: Sequence[tuple[Message, tuple[int, int]]], unfolded: bool) -> list[Any]:
    return [(message.id, message_items(message, where, unfolded)) for message, where in placed]


def place(tree: Tree, message: int) -> tuple[int, int]:
    """Which of the messages below the same parent a message is, and how many there are."""
    siblings = tree.siblings(message)
    return siblings.index(message) + 1, len(siblings)
