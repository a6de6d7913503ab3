"""One line above the prompt: which message is chosen, and the keys for what can be done with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from app.theme import Look, make_look

_MODIFIERS = re.compile(r"(?:\w+\+)*")
_KEYS = (
    (("chat.edit_message",), "edit"),
    (("chat.retry",), "again"),
    (("chat.older_branch", "chat.newer_branch"), "branch"),
    (("chat.copy_message",), "copy"),
    (("chat.fork",), "fork"),
    (("chat.stop",), "done"),
)
MESSAGE_KEYS = ("chat.choose_above", "chat.choose_below", *(id for ids, _ in _KEYS for id in ids), "chat.go_on")
"""The ids of the bindings for a chosen message."""


class MessageBar(Widget):
    """Shows `text` and, with `keys`, those for a chosen message, of `branch`; hidden while there is no text."""

    DEFAULT_CSS = """
    MessageBar { height: 1; padding: 0 2; background: $background; display: none; }
    """

    HELP = """# A chosen message

    The bar above the message box tells which message is chosen, and in which of its branches; it is marked in the
    transcript. What is done with it overwrites nothing: another wording or another answer is a branch beside the
    first."""

    text: reactive[str] = reactive("")
    branch: reactive[str] = reactive("")
    keys: reactive[bool] = reactive(True)

    def watch_text(self, text: str) -> None:
        self.display = bool(text)

    def render(self) -> Text:
        look = make_look(self.app.theme_variables)
        line = Text(self.text, look.primary, no_wrap=True, overflow="ellipsis")
        if not self.keys:
            return line
        keys = self._keys(look)
        return line + (keys if line.cell_len + keys.cell_len <= self.size.width else self._short_keys(look))

    def _keys(self, look: Look) -> Text:
        line = Text()
        for keys, what in self._shown():
            line.append(f"  {' '.join(keys)}", look.accent).append(f" {what}", look.muted)
        return line

    def _short_keys(self, look: Look) -> Text:
        """Where there is little room: modifiers only where they change, as in "alt+e edit  r again"."""
        line, held = Text(), ""
        for keys, what in self._shown():
            before, held = held, _MODIFIERS.match(keys[0])[0]  # type: ignore[index]  # it matches any text
            bare = "".join(key.removeprefix(held) for key in keys)
            line.append(f"  {held if held != before else ''}{bare}", look.accent).append(f" {what}", look.muted)
        return line

    def _shown(self) -> Iterator[tuple[list[str], str]]:
        """The keys in effect, and what they do, with the number of the branch where there are several."""
        active = {each.binding.id: each.binding for each in self.screen.active_bindings.values()}
        for ids, what in _KEYS:
            branch = f" {self.branch}" if what == "branch" and self.branch else ""
            if keys := [self.app.get_key_display(active[id]) for id in ids if id in active]:
                yield keys, what + branch
