"""One line above the prompt: which message is chosen, and the keys for what can be done with it."""

from __future__ import annotations

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from app.theme import make_look

_KEYS = (
    (("chat.edit_message",), "edit"),
    (("chat.retry",), "again"),
    (("chat.older_branch", "chat.newer_branch"), "branch"),
    (("chat.copy_message",), "copy"),
    (("chat.fork",), "fork"),
    (("chat.stop",), "done"),
)


class MessageBar(Widget):
    """Shows `text` and, with `keys`, those for a chosen message; hidden while there is no text."""

    DEFAULT_CSS = """
    MessageBar { height: 1; padding: 0 2; background: $background; display: none; }
    """

    text: reactive[str] = reactive("")
    keys: reactive[bool] = reactive(True)

    def watch_text(self, text: str) -> None:
        self.display = bool(text)

    def render(self) -> Text:
        look = make_look(self.app.theme_variables)
        line = Text(self.text, look.primary, no_wrap=True, overflow="ellipsis")
        if self.keys:
            active = {each.binding.id: each.binding for each in self.screen.active_bindings.values()}
            for ids, what in _KEYS:
                shown = [self.app.get_key_display(active[id]) for id in ids if id in active]
                line.append(f"  {' '.join(shown)}", look.accent)
                line.append(f" {what}", look.muted)
        return line
