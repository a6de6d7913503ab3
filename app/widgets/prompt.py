"""The box to write in: Enter sends, Ctrl+J makes a line, a paste of many lines is one paste."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
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
        Binding("enter", "send", "Send", key_display="⏎", id="prompt.send", priority=True),
        Binding("ctrl+j,shift+enter", "newline", "Line", id="prompt.newline", priority=True),
    ]

    @dataclass
    class Sent(Message):
        """The person pressed Enter on `text`, which is not blank."""

        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=False, highlight_cursor_line=False, placeholder="Write a message")

    def action_send(self) -> None:
        if self.text.strip():
            self.post_message(self.Sent(self.text))

    def action_newline(self) -> None:
        self.insert("\n")

    async def _on_paste(self, event: events.Paste) -> None:
        # What is pasted is shown and sent as visible text: it must not act on the terminal.
        event.prevent_default()
        event.stop()
        if result := self._replace_via_keyboard(visible(event.text), *self.selection):
            self.move_cursor(result.end_location)
