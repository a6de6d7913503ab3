"""The conversations of the history: opened, begun, forked, renamed, deleted and brought back, exported, imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from app.sanitize import visible
from app.screens.conversation_control import ConversationControl
from app.screens.message_control import MessageControl
from app.store.records import HistoryError, Hit, Summary, file_name
from app.store.store import Store
from app.store.tree import Tree
from app.widgets.history_sidebar import HistorySidebar
from app.widgets.prompt import Prompt
from app.widgets.render import NoteKind
from app.widgets.transcript import Transcript


class HistoryControl:
    """Which conversation is on the screen, and what is done with the others.

    `note` writes in the transcript, `hint` shows a passing message.
    """

    def __init__(
        self,
        store: Store,
        conversation: ConversationControl,
        messages: MessageControl,
        transcript: Transcript,
        prompt: Prompt,
        note: Callable[[str, NoteKind], None],
        hint: Callable[[str], None],
    ) -> None:
        self._store = store
        self._conversation = conversation
        self._messages = messages
        self._transcript = transcript
        self._prompt = prompt
        self._note = note
        self._hint = hint
        self._deleted: list[Summary] = []
        self.sidebar = HistorySidebar(self)

    @property
    def current(self) -> int:
        """The id of the conversation on the screen."""
        return self._conversation.tree.id

    def drain(self) -> None:
        """Tell what the history has to say."""
        for notice in self._store.drain():
            self._note(notice, "notice")

    async def find(self, text: str, before: Summary | None, limit: int) -> tuple[Hit, ...]:
        """The newest conversations that have every word of `text`; without one all, those that follow `before`."""
        if text.strip():
            return await self._store.search(text, limit) if before is None else ()
        return tuple(Hit(each, None, "") for each in await self._store.conversations(before, limit))

    # The conversation on the screen

    def new(self) -> None:
        """Begin another conversation."""
        if self._conversation.is_free("Then /new."):
            tree = self._store.new(self._conversation.system)
            self._conversation.view.begin(lambda: self._show(tree))

    def open(self, id: int) -> None:
        """Go on with a conversation."""
        if id != self.current and self._conversation.is_free("Then a conversation can be opened."):
            self._conversation.view.begin(lambda: self._open(id))

    def resume(self) -> None:
        """Go on with the newest conversation."""
        self._conversation.view.begin(self._resume)

    def fork(self) -> None:
        """Go on in a conversation of its own, which begins as this one does, up to the chosen message."""
        if not self._conversation.begun:
            self._hint("There is nothing to fork yet.")
        elif self._conversation.is_free("Then /fork."):
            end = self._messages.chosen
            self._conversation.view.begin(lambda: self._fork(end.id if end else None))

    async def _resume(self) -> None:
        if newest := await self._store.conversations(limit=1):
            # What was said at the start stays above it.
            await self._show(await self._store.open(newest[0].id), clear=False)
        else:
            self._note("There is no conversation to continue yet.", "notice")

    async def _open(self, id: int) -> None:
        await self._show(await self._store.open(id))

    async def _show(self, tree: Tree, clear: bool = True) -> None:
        self._messages.done()
        self._conversation.begin(tree)
        self.sidebar.mark(tree.id)
        if clear:
            self._transcript.clear()
        await self._conversation.view.show(tree)
        if tree.active is None:
            self._note("A new conversation.", "notice")
        elif tree.system != self._conversation.system:
            self._note("This conversation has a system prompt of its own; /system shows it.", "notice")
        # The texts further up are not shown yet, but a model will be given them, and the prompt remembers questions.
        messages = await self._store.messages(tree, [node.id for node in tree.path()])
        await self.recall(message.text for message in messages if message.role == "user")

    async def recall(self, questions: Iterable[str] = ()) -> None:
        """Let the prompt call back what was sent: `questions` of this conversation, and before them those of others."""
        own = tuple(questions)
        self._prompt.sent.replace((*(text for text in await self._store.questions() if text not in own), *own))

    async def _fork(self, end: int | None) -> None:
        old = self._conversation.tree
        title = await self._store.title(old.id)
        messages = await self._store.messages(old, [node.id for node in old.path(end)])
        tree, parent = self._store.new(old.system), None
        for message in messages:
            parent = tree.add(message.role, message.text, parent, message.model, message.settings).id
            if message.role == "assistant" and message.finish_reason is not None:
                tree.finish(parent, message.finish_reason, message.figures)
        self._store.rename(tree.id, f"{title} (fork)")
        await self._show(tree)
        self._note(f"A fork of “{visible(title)}”, which stays as it is.", "notice")
        self.sidebar.reload()

    # Any conversation

    def rename(self, id: int, title: str) -> None:
        """Give a conversation another title."""
        if not title.strip():
            self._hint("A title needs a letter, as in /rename Tides.")
        elif id == self.current and not self._conversation.begun:
            self._hint("A conversation can be renamed as soon as it has a message.")
        else:
            self._store.rename(id, title)
            self.sidebar.reload()

    def delete(self, conversation: Summary) -> None:
        """Delete a conversation; `undo` brings it back."""
        if conversation.id == self.current:
            if not self._conversation.is_free("Then it can be deleted."):
                return
            self.new()
        self._store.delete(conversation.id)
        self._deleted.append(conversation)
        self.sidebar.reload()

    def undo(self) -> None:
        """Bring back the conversation deleted last."""
        if not self._deleted:
            self._hint("Nothing was deleted that could be brought back here.")
            return
        self._store.restore(self._deleted.pop().id)
        self.sidebar.reload()

    # Files

    def export(self, argument: str) -> None:
        """Do what follows `/export`: write the conversation to a new file, by default one named as it is."""
        if self._conversation.begun:
            self._run(self._export(argument))
        else:
            self._hint("There is nothing to export yet.")

    def import_file(self, argument: str) -> None:
        """Do what follows `/import`: add the conversation of an exported JSON file, and open it."""
        if not argument:
            self._hint("/import takes the path of an exported JSON file.")
        elif self._conversation.is_free("Then /import."):
            self._conversation.view.begin(lambda: self._import(Path(os.path.expanduser(argument))))

    async def _export(self, argument: str) -> None:
        path = Path(os.path.expanduser(argument)) if argument else Path.cwd()
        if path.is_dir():
            path = _free(path / f"{file_name(await self._store.title(self.current))}.md")
        await self._store.export(self.current, path)
        self._note(f"Exported to {path}.", "notice")

    async def _import(self, path: Path) -> None:
        id = await self._store.import_json(path)
        await self._open(id)
        self.sidebar.reload()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except HistoryError as error:
                self._note(str(error), "error")

        self._prompt.run_worker(run(), group="files")


def _free(path: Path) -> Path:
    """`path`, or with a number where there is a file of that name."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free
