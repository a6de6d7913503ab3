"""The editor of one setting: a list to choose from, a line, or a text of several lines, by the setting's type."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Input, Select, TextArea

from app.sanitize import visible
from app.settings.values import Setting, check, parse, text_of


class SettingEditor(Container):
    """Shows the value of the setting that it was given last; a switch needs no editor."""

    DEFAULT_CSS = """
    SettingEditor { height: auto; padding: 0 1; }
    SettingEditor Input, SettingEditor TextArea { background: $surface; padding: 0 1; }
    SettingEditor TextArea { height: auto; max-height: 4; border: none; }
    SettingEditor SelectCurrent { background: $surface; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._setting: Setting | None = None
        self._text = ""
        self._line = Input(compact=True)
        self._lines = TextArea(compact=True, highlight_cursor_line=False)
        self._choices = Select([("", "")], allow_blank=False, compact=True)

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._lines
        yield self._choices

    def show(self, setting: Setting, value: Any) -> None:
        """Let this setting be edited from now on."""
        self._setting, self._text = setting, visible(text_of(value))
        choices, long = setting.spec.choices, setting.spec.long
        self._choices.display = bool(choices)
        self._lines.display = long
        self._line.display = not choices and not long and setting.base is not bool
        with self.prevent(Input.Changed, Select.Changed, TextArea.Changed):
            self._line.value = self._lines.text = self._text
            if choices:
                self._choices.set_options([(choice, choice) for choice in choices])
                self._choices.value = value if value in choices else choices[0]

    def enter(self) -> None:
        """Put the cursor here, and open the list if it is one."""
        if self._choices.display:
            self._choices.focus()
            self._choices.action_show_overlay()
        else:
            (self._lines if self._lines.display else self._line).focus()

    @property
    def changed(self) -> bool:
        """Whether there is something else than what was shown."""
        return self._typed != self._text

    @property
    def value(self) -> Any:
        """What was typed or chosen. Raises ValueError, saying what was expected."""
        assert self._setting is not None
        if self._choices.display:
            return check(self._setting, self._choices.value)
        return parse(self._setting, self._typed)

    @property
    def _typed(self) -> str:
        if self._choices.display:
            return str(self._choices.value)
        return self._lines.text if self._lines.display else self._line.value
