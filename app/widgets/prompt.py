"""The box to write in: Enter sends, Ctrl+J makes a line, a paste of many lines is one paste."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from app.sanitize import visible


class Prompt(TextArea):
    """A text area that grows with its text, up to a third of the screen."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        max-height: 8;
        min-height: 3;
        margin: 0 1;
        padding: 0 1;
        border: round $border;
        background: $background;
        scrollbar-size-vertical: 1;
        &:focus { border: round $primary; }
        .text-area--cursor-line { background: $background; }
        .text-area--placeholder { color: $foreground 45%; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send the message", key_display="⏎", show=False, id="prompt.send"),
        Binding("ctrl+j,shift+enter", "newline", "Line", id="prompt.newline", tooltip="Begin a new line"),
        Binding("ctrl+c,super+c", "copy", "Copy", show=False, id="prompt.copy", tooltip="Copy the selection"),
    ]

    def __init__(self, accept: Callable[[str], bool], *, id: str | None = None) -> None:
        """`accept` is given what is sent; the box is emptied only if it returns True."""
        super().__init__(id=id, highlight_cursor_line=False, placeholder="Write a message")
        self._accept = accept
        # A text area selects with them; here the function keys are the chat's.
        for key in ("f6", "f7"):
            self._bindings.key_to_bindings.pop(key)

    def action_send(self) -> None:
        if self.text.strip() and self._accept(self.text):
            self.clear()

    def action_newline(self) -> None:
        self.insert("\n")

    async def _on_key(self, event: events.Key) -> None:
        # Run here and now, not when the key has bubbled up: what is typed fast must keep its order.
        active = self.screen.active_bindings.get(event.key)
        if active is not None and active.node is self and active.binding.action in ("send", "newline"):
            event.prevent_default()
            event.stop()
            await self.run_action(active.binding.action)

    async def _on_paste(self, event: events.Paste) -> None:
        # What is pasted is shown and sent as visible text: it must not act on the terminal.
        event.prevent_default()
        event.stop()
        if result := self._replace_via_keyboard(visible(event.text), *self.selection):
            self.move_cursor(result.end_location)
