"""One setting: its title, an editor of its type, and where its value comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input, Select, Static, Switch, TextArea

from app.sanitize import visible
from app.settings import Sources
from app.settings.values import Setting, parse, text_of


class SettingRow(Horizontal):
    """A new value is given to `change`; it and what was typed may be no good: `refuse` is told what was expected."""

    DEFAULT_CSS = """
    SettingRow { height: auto; min-height: 1; padding: 0 1 0 3; }
    SettingRow > Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    SettingRow > .title { width: 34; padding: 0 1 0 0; }
    SettingRow > .origin { width: 24; padding: 0 0 0 2; color: $foreground 55%; }
    SettingRow > Input, SettingRow > Select { width: 1fr; }
    SettingRow > Input { background: $surface; padding: 0 1; }
    SettingRow > Select > SelectCurrent { background: $surface; padding: 0 1; }
    SettingRow > TextArea { width: 1fr; height: auto; max-height: 5; border: none; padding: 0 1; background: $surface; }
    SettingRow > Switch { border: none; height: 1; padding: 0; background: $background; }
    SettingRow > Switch:focus { border: none; background: $background; }
    SettingRow:focus-within > .title { color: $primary; text-style: bold; }
    """

    def __init__(
        self,
        setting: Setting,
        sources: Sources,
        change: Callable[[SettingRow, Any], None],
        refuse: Callable[[SettingRow, str], None],
    ) -> None:
        super().__init__()
        self.setting = setting
        self._change = change
        self._refuse = refuse
        self._text = ""
        self._editor = self._make_editor()
        self._origin = Static(classes="origin", markup=False)
        spec = setting.spec
        self.words = f"{setting.name} {spec.title} {spec.help} {spec.group}".lower()
        """What a search looks at."""
        self._sources = sources

    def compose(self) -> ComposeResult:
        yield Static(self.setting.spec.title, classes="title", markup=False)
        yield self._editor
        yield self._origin

    def on_mount(self) -> None:
        self.show(self._sources)

    def _make_editor(self) -> Widget:
        setting = self.setting
        if setting.base is bool:
            return Switch()
        if choices := setting.spec.choices:
            return Select([(choice, choice) for choice in choices], allow_blank=True, compact=True, prompt="")
        if setting.spec.long:
            return TextArea(compact=True, highlight_cursor_line=False)
        return Input(compact=True)

    def show(self, sources: Sources) -> None:
        """Show the value in use and where it comes from."""
        value = sources.value(self.setting.name)
        if value is None:
            value = self.setting.default
        self._text = visible(text_of(value))
        origin = sources.origin(self.setting.name)
        self._origin.update("" if origin == "default" else f"from {origin}")
        with self.prevent(Switch.Changed, Select.Changed, Input.Changed):
            match self._editor:
                case Switch():
                    self._editor.value = value
                case Select():
                    self._editor.value = value if value in self.setting.spec.choices else Select.NULL
                case TextArea():
                    self._editor.text = self._text
                case Input():
                    self._editor.value = self._text
                    self._editor.remove_class("-invalid")

    def enter(self) -> None:
        """Put the cursor here."""
        self._editor.focus()

    def commit(self) -> bool:
        """Take what was typed, if it is new; False where it is refused."""
        if not isinstance(self._editor, Input | TextArea):
            return True
        text = self._editor.value if isinstance(self._editor, Input) else self._editor.text
        if text == self._text:
            return True
        try:
            self._change(self, parse(self.setting, text))
        except ValueError as error:
            self._editor.add_class("-invalid")
            self._refuse(self, str(error))
            return False
        return True

    def on_switch_changed(self, event: Switch.Changed) -> None:
        self._change(self, event.value)

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.value is not Select.NULL:
            self._change(self, event.value)

    def on_input_submitted(self) -> None:
        self.commit()

    def on_descendant_blur(self) -> None:
        self.commit()
