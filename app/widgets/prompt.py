"""The box to write in: several lines, completion, files, what was sent before, and how many tokens it will take."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget

from app.attachments import Attachment, BadAttachment, mentioned, read_attachment, with_attachments
from app.completion import Completer
from app.external_editor import EditorFailed, edit_text
from app.prompt_forecast import forecast
from app.prompt_history import PromptHistory
from app.prompt_pastes import Pastes
from app.sanitize import visible, visible_so_far
from app.slash import parse_slash
from app.theme import make_look, on_theme
from app.token_count import TokensCounted
from app.widgets.cluster_area import ClusterArea
from app.widgets.completion_list import CompletionList

_COUNT_DELAY_S = 0.25  # after the last change


class Prompt(ClusterArea):
    """A text area that grows with its text, up to a third of the screen.

    `accept` is given what is sent; the box is emptied only if it returns True. `editor` is the command for the
    person's own editor.
    """

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        max-height: 34vh;
        min-height: 3;
        margin: 0 1;
        padding: 0 1;
        border: round $border;
        background: $background;
        border-subtitle-color: $foreground 60%;
        scrollbar-size-vertical: 1;
        &:focus { border: round $primary; }
        .text-area--cursor-line { background: $background; }
        .text-area--placeholder { color: $foreground 45%; }
    }
    """

    HELP = """# The message box

    Here you write to the model, in as many lines as you like; / begins a command and @ names a text file to attach.
    The border tells how many tokens it will take, and up and down bring back what was sent before."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send the message", key_display="⏎", show=False, id="prompt.send"),
        Binding("ctrl+j,shift+enter", "newline", "Line", id="prompt.newline", tooltip="Begin a new line"),
        Binding("tab", "complete", "Complete", show=False, id="prompt.complete", tooltip="Take the choice in the list"),
        Binding("escape", "close_list", "Close the list", show=False, id="prompt.close_list"),
        Binding("ctrl+g", "edit", "Editor", show=False, id="prompt.edit", tooltip="Write in your own editor"),
        Binding("ctrl+c,super+c", "copy", "Copy", show=False, id="prompt.copy", tooltip="Copy the selection"),
    ]

    class Drafted(Message):
        """What would be sent now is `text`, with the attached `files` in it; `number` grows with each."""

        def __init__(self, number: int, text: str, files: tuple[Attachment, ...]) -> None:
            super().__init__()
            self.number = number
            self.text = text
            self.files = files

    def __init__(
        self, accept: Callable[[str], bool], completer: Completer, editor: str = "vi", *, id: str | None = None
    ) -> None:
        self._pastes = Pastes()  # looked at as soon as there is a text
        super().__init__(id=id, highlight_cursor_line=False, placeholder="Write a message")
        self._accept = accept
        self._completer = completer
        self._editor = editor
        self.sent = PromptHistory()
        self._list = CompletionList(self._take)
        self._completing: tuple[str, bool] | None = None
        self._recalled: str | None = None
        self._count_timer: Timer | None = None
        self._draft = 0
        self._counted: tuple[TokensCounted, int] | None = None
        self._names: tuple[str, ...] = ()
        # A text area selects with them; here the function keys are the chat's.
        for key in ("f6", "f7"):
            self._bindings.key_to_bindings.pop(key)

    async def on_mount(self) -> None:
        assert isinstance(self.parent, Widget)
        await self.parent.mount(self._list, before=self)
        on_theme(self, self._recount)

    def _recount(self) -> None:
        if self._counted:
            self.show_count(*self._counted)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._list.display if action == "close_list" else super().check_action(action, parameters)

    async def _on_key(self, event: events.Key) -> None:
        # Run here and now, not when the key has bubbled up: what is typed fast must keep its order.
        active = self.screen.active_bindings.get(event.key)
        done = active is not None and active.node is self and await self.app.run_action(active.binding.action, self)
        # Joiners, which hold emoji and Persian words together, are not among what Textual takes for printable.
        joins = event.character is not None and unicodedata.category(event.character) == "Cf"
        if joins and not done:
            self._insert(event.character or "")
        if done or joins:
            event.prevent_default()
            event.stop()

    # Sending

    async def action_send(self) -> None:
        """Send the text, with the files that it names; or take the choice that the person has gone to in the list."""
        if self._list.moved and self._take():
            return
        typed = self._pastes.expand(self.text)
        if not typed.strip():
            return
        try:
            files = () if parse_slash(typed) else await asyncio.to_thread(_read_files, self.text)
        except BadAttachment as error:
            self._warn(str(error))
            return
        if self._accept(with_attachments(typed, files)):
            self.sent.add(typed)
            self._pastes.clear()
            self.load_text("")

    def action_newline(self) -> None:
        self._insert("\n")

    def action_edit(self) -> None:
        """Write on in the person's own editor. Nothing else is done until it ends, for it has the terminal."""
        try:
            with self.app.suspend():
                result = self._edited()
        except SuspendNotSupported:
            self._warn("The terminal cannot be left to an editor here.")
            return
        if isinstance(result, EditorFailed):
            self._warn(str(result))
        else:
            self.write(result)

    def _edited(self) -> str | EditorFailed:
        # Nothing may be raised while the application is suspended: it would not come back.
        try:
            return edit_text(self._pastes.expand(self.text), self._editor)
        except EditorFailed as error:
            return error

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=6, markup=False)

    # Text that comes from elsewhere

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        # Terminals send a carriage return for each line break.
        self._insert(self._pastes.fold(event.text.replace("\r\n", "\n").replace("\r", "\n")))

    def _insert(self, text: str) -> None:
        # What is pasted is shown and sent as visible text: it must not act on the terminal.
        if result := self._replace_via_keyboard(visible_so_far(text), *self.selection):
            self.move_cursor(result.end_location)

    def write(self, text: str) -> None:
        """Put `text` in place of what is there, and go to its end."""
        self._show(text)
        self.move_cursor(self.document.end)
        self.focus()

    def _show(self, text: str) -> None:
        self.load_text(self._pastes.fold(visible(text)))

    def atoms(self, line: str) -> Sequence[tuple[int, int]]:
        return self._pastes.labels(line)

    # What was sent before

    def action_cursor_up(self, select: bool = False) -> None:
        """Go up: in the list, in the text, and from its first line to what was sent before."""
        if self._list.takes_arrows:
            self._list.move(-1)
        elif select or not self.navigator.is_first_wrapped_line(self.cursor_location) or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Go down: in the list, in the text, and from its last line to what was sent after."""
        if self._list.takes_arrows:
            self._list.move(1)
        elif select or not self.navigator.is_last_wrapped_line(self.cursor_location) or not self._recall(1):
            super().action_cursor_down(select)

    def _recall(self, step: int) -> bool:
        text = self.sent.older(self.text) if step < 0 else self.sent.newer(self.text)
        if text is None:
            return False
        self._show(text)
        self._recalled = self.text
        # Where the next press of the same key goes on.
        self.move_cursor(self.navigator.get_location_end((0, 0)) if step < 0 else self.document.end)
        return True

    # What can follow

    def _on_text_area_changed(self) -> None:
        self._complete()
        if self._count_timer is not None:
            self._count_timer.stop()
        self._draft += 1  # what is being counted is no longer so
        self._count_timer = self.set_timer(_COUNT_DELAY_S, self._read_draft)

    def _on_text_area_selection_changed(self) -> None:
        self._complete()

    def _before(self) -> tuple[str, bool]:
        row, column = self.cursor_location
        return self.document[row][:column], row == 0

    def _complete(self) -> None:
        before = self._before()
        if before == self._completing:
            return
        self._completing = before
        if self.text == self._recalled or not self._completer.applies(*before):
            self._list.show(None)
        else:
            self.run_worker(self._find(before), exclusive=True, group="complete")

    async def _find(self, before: tuple[str, bool]) -> None:
        found = await asyncio.to_thread(self._completer.complete, *before)
        if before == self._before():
            self._list.show(found)

    async def action_complete(self) -> None:
        """Take the choice in the list."""
        if not self._completer.applies(*(before := self._before())):
            raise SkipAction
        await self._find(before)  # the list may not be there yet
        self._take()

    def _take(self) -> bool:
        completions, choice = self._list.completions, self._list.choice
        if completions is None or choice is None:
            return False
        row, column = self.cursor_location
        self._list.show(None)
        self._replace_via_keyboard(choice.text, (row, completions.start), (row, column))
        return True

    def action_close_list(self) -> None:
        """Close the list, until something is typed."""
        self._list.show(None)

    # What it will take

    def _read_draft(self) -> None:
        self.run_worker(self._tell_draft(self._draft), exclusive=True, group="draft")

    async def _tell_draft(self, number: int) -> None:
        text = self._pastes.expand(self.text)
        self.border_subtitle = ""
        if not text.strip() or parse_slash(text):
            return
        try:
            files = await asyncio.to_thread(_read_files, self.text)
        except BadAttachment as error:
            self.border_subtitle = Content.styled(str(error), "$warning")
            return
        self._names = tuple(visible(file.name) for file in files)
        self.post_message(self.Drafted(number, with_attachments(text, files), files))

    def show_count(self, counted: TokensCounted, context: int) -> None:
        """Show what the text takes of a context of so many tokens, if it is still the one that was counted."""
        self._counted = counted, context
        if counted.number == self._draft:
            look = make_look(self.app.theme_variables)
            self.border_subtitle = Content.from_rich_text(forecast(counted, self._names, context, look))


def _read_files(text: str) -> tuple[Attachment, ...]:
    return tuple(read_attachment(name) for name in mentioned(text))
