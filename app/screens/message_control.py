"""Messages of the conversation: chosen with keys, edited, answered again, seen in their other branches."""

from __future__ import annotations

from collections.abc import Callable

from app.screens.branch_view import place
from app.screens.conversation_control import ConversationControl
from app.store.records import Node
from app.widgets.message_bar import MessageBar
from app.widgets.prompt import Prompt
from app.widgets.transcript import Transcript


class MessageControl:
    """What is done with one message: the chosen one, or the last that it can be done with.

    `editing` is the question whose new wording is being written, None for a new one. `hint` shows a passing message.
    """

    def __init__(
        self,
        conversation: ConversationControl,
        transcript: Transcript,
        prompt: Prompt,
        bar: MessageBar,
        hint: Callable[[str], None],
    ) -> None:
        self._conversation = conversation
        self._transcript = transcript
        self._prompt = prompt
        self._bar = bar
        self._hint = hint
        self._chosen: int | None = None
        self._draft = ""
        self.editing: int | None = None

    @property
    def chosen(self) -> Node | None:
        """The chosen message, as long as it is in the branch shown."""
        return next((node for node in self._conversation.tree.path() if node.id == self._chosen), None)

    def choose(self, step: int) -> None:
        """Choose the message before (-1) or after (1) the chosen one; the last one first, and none after it."""
        tree, view = self._conversation.tree, self._conversation.view
        if self.editing is not None or view.busy or not self._conversation.is_free("Then a message can be chosen."):
            return
        path = [node.id for node in tree.path()]
        at = (path.index(self.chosen.id) if self.chosen else len(path)) + step
        if at == len(path):
            self.leave()
        elif 0 <= at < len(path) and self._transcript.shows(path[at]):
            self._choose(path[at])
        elif 0 <= at < len(path):
            view.begin(lambda: self._show_chosen(path[at]))

    async def _show_chosen(self, message: int) -> None:
        await self._conversation.view.show_back_to(self._conversation.tree, message)
        self._choose(message)

    def _choose(self, message: int) -> None:
        tree = self._conversation.tree
        self._chosen = message
        self._transcript.choose(message)
        path = tree.path()
        index, node = next((index, node) for index, node in enumerate(path, 1) if node.id == message)
        number, count = place(tree, message)
        what = "Question" if node.role == "user" else "Reply"
        self._bar.branch = f"{number}/{count}" if count > 1 else ""
        self._bar.keys, self._bar.text = True, f"{what} {index}/{len(path)}"

    def leave(self) -> bool:
        """Choose no message and edit none; False if that was so already."""
        if self._chosen is None:
            return False
        if self.editing is not None:
            self._prompt.write(self._draft)
        self.done()
        return True

    def done(self) -> None:
        """Choose no message and edit none, and leave the prompt as it is."""
        self._chosen = self.editing = None
        self._bar.text = ""
        self._transcript.choose(None)

    @property
    def question(self) -> int | None:
        """The chosen question, or that of the chosen reply; without a chosen one the last question."""
        path = self._conversation.tree.path(self.chosen.id if self.chosen else None)
        return next((node.id for node in reversed(path) if node.role == "user"), None)

    def edit(self) -> None:
        """Put a question into the prompt; what is sent then is another branch in its place."""
        question = self.question
        message = self._conversation.tree.loaded(question) if question is not None else None
        if message is None:
            self._hint("There is no question to edit yet.")
        elif self._conversation.is_free("Then /edit."):
            self._draft = self._draft if self.editing is not None else self._prompt.text
            self._chosen = self.editing = message.id
            self._transcript.choose(message.id)
            self._bar.keys = False
            self._bar.text = "Another wording of this question becomes a branch of its own; esc leaves it as it is"
            self._prompt.write(message.text)

    def retry(self) -> None:
        """Let the model answer a question once more."""
        if (question := self.question) is None:
            self._hint("There is no question to answer again yet.")
        elif self._conversation.can_ask("Then /retry."):
            self.done()
            self._conversation.answer_again(question)

    def go_on(self) -> None:
        """Let the model go on with a reply that was cut off: the chosen one, or else the last one."""
        nodes = [self.chosen] if self.chosen else reversed(self._conversation.tree.path())
        reply = next((node.id for node in nodes if node.role == "assistant"), None)
        if reply is None:
            self._hint("There is no reply to go on with here.")
        elif self._conversation.go_on(reply):
            self.done()

    def branch(self, step: int) -> None:
        """Go to the branch before (-1) or after (1), at the chosen message or at the last one that has others."""
        tree = self._conversation.tree
        nodes = [self.chosen] if self.chosen else reversed(tree.path())
        node = next((node for node in nodes if len(tree.siblings(node.id)) > 1), None)
        if node is None:
            self._hint("There is no other branch here: /edit and /retry make one.")
            return
        siblings = tree.siblings(node.id)
        at = siblings.index(node.id) + step
        if not 0 <= at < len(siblings):
            self._hint(f"This is the {'first' if step < 0 else 'last'} of {len(siblings)} branches.")
        elif self._conversation.is_free("Then the branch can be changed."):
            self.done()
            self._conversation.view.begin(lambda: self._show_branch(node.id, siblings[at]))

    async def _show_branch(self, old: int, new: int) -> None:
        tree = self._conversation.tree
        await self._conversation.view.show_back_to(tree, old)
        tree.show(new)
        self._transcript.cut(old)
        await self._conversation.view.show_from(tree, new)
        await self._conversation.view.show_back_to(tree, new)
        self._choose(new)
