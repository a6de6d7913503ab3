"""The settings screen, made from the settings' own descriptions: a list of them, and an editor for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Select, Static
from textual.widgets.option_list import Option

from app.sanitize import visible
from app.settings import Sources
from app.settings.values import Setting, text_of
from app.theme import Look, make_look, on_theme
from app.widgets.setting_editor import SettingEditor

_TITLE, _TITLE_NARROW, _ORIGIN = 36, 24, 22  # cells


class SettingsScreen(ModalScreen[None]):
    """Every setting, saved as soon as it is changed.

    `change` sets a value by name, None for the default, and returns a notice; it raises ValueError on a bad value.
    """

    DEFAULT_CSS = """
    SettingsScreen { align: center middle; }
    SettingsScreen > Vertical {
        width: 96; max-width: 100%; height: 92%; padding: 0 1;
        border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 65%;
    }
    SettingsScreen #search { background: $background; padding: 0 1; }
    SettingsScreen #list {
        height: 1fr; margin: 1 0; border: none; background: $background; padding: 0; scrollbar-size-vertical: 1;
        &:focus { border: none; background-tint: $background 0%; }
    }
    SettingsScreen #list > .option-list--option-disabled { color: $primary; }
    SettingsScreen #detail { height: 2; padding: 0 1; margin: 1 0 0 0; }
    SettingsScreen.-narrow > Vertical { height: 100%; }
    """
    HELP = """# Settings

    Every setting with its value and where that comes from; what is changed is saved at once. Enter changes the one
    at the cursor, and the lines below it tell what it is for and when a change works."""
    # Stronger than the list's own.
    CSS = """
    SettingEditor SelectOverlay { constrain: none inflect; border: round $primary; background: $background; }
    SettingEditor SelectOverlay:focus { border: round $primary; background-tint: $background 0%; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close, or back to the list", id="settings.close"),
        Binding("tab,shift+tab", "switch", "Between list and editor", id="settings.edit", priority=True),
        Binding("ctrl+f", "search", "Search", id="settings.search", priority=True),
        Binding("ctrl+r", "reset", "Back to the default", id="settings.reset", priority=True),
    ]

    def __init__(
        self,
        known: Callable[[], Mapping[str, Setting]],
        sources: Callable[[], Sources],
        change: Callable[[str, Any], str],
    ) -> None:
        super().__init__()
        self._known = known()
        self._sources = sources
        self._change = change

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Settings"
            box.border_subtitle = "enter changes · ctrl+r default · ctrl+f search · esc closes"
            yield Input(placeholder="Search", compact=True, id="search")
            yield OptionList(id="list", markup=False)
            yield SettingEditor()
            yield Static(id="detail", markup=False)

    def on_mount(self) -> None:
        self._list = self.query_one("#list", OptionList)
        self._search = self.query_one("#search", Input)
        self._editor = self.query_one(SettingEditor)
        self._detail = self.query_one("#detail", Static)
        self._list.focus()
        on_theme(self, self._recolour)

    def _recolour(self) -> None:
        for option in self._list.options:
            if option.id is not None:
                self._list.replace_option_prompt(option.id, self._line(self._known[option.id]))
        self._explain(self._problem() if self._editing else "")

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        """List the settings that have all words of the search in them."""
        before, words = self._list.highlighted_option, self._search.value.lower().split()
        found = [setting for setting in self._known.values() if all(word in _words(setting) for word in words)]
        self._list.clear_options().add_options(self._options(found))
        names = [option.id for option in self._list.options]
        if before is not None and before.id in names:
            self._list.highlighted = names.index(before.id)
        else:
            self._list.action_first()

    def _options(self, found: list[Setting]) -> Iterator[Option]:
        for group, settings in groupby(found, lambda setting: setting.spec.group):
            yield Option(group, disabled=True)
            for setting in settings:
                yield Option(self._line(setting), id=setting.name)

    def _line(self, setting: Setting) -> Text:
        """Title, value and where it comes from, in columns."""
        look = make_look(self.app.theme_variables)
        width = min(self.app.size.width, 96) - 8
        title, origin = _TITLE if width > 80 else _TITLE_NARROW, self._sources().origin(setting.name)
        value = Text(visible(text_of(self._value(setting))).replace("\n", " "), _value_style(look, origin))
        value.truncate(width - title - _ORIGIN - 4, overflow="ellipsis", pad=True)
        name = Text(f"  {setting.spec.title}")
        name.truncate(title, overflow="ellipsis", pad=True)
        return name + Text("  ") + value + Text("  " + ("" if origin == "default" else f"from {origin}"), look.muted)

    def _value(self, setting: Setting) -> Any:
        value = self._sources().value(setting.name)
        return setting.default if value is None else value

    @property
    def _setting(self) -> Setting | None:
        option = self._list.highlighted_option
        return self._known[option.id] if option is not None and option.id is not None else None

    @property
    def _editing(self) -> bool:
        return self.focused is not None and self._editor in self.focused.ancestors

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_list is self._list:
            self._show()

    def _show(self) -> None:
        if (setting := self._setting) is not None:
            self._editor.show(setting, self._value(setting))
            self._explain()

    def _explain(self, problem: str = "") -> None:
        """Say what the setting at the cursor is, and when a change works, or what is wrong with what was typed."""
        look, setting = make_look(self.app.theme_variables), self._setting
        if setting is None:
            return
        said = setting.spec.choices or setting.base in (bool, str, tuple)
        help = Text(f"{setting.spec.help}. {'' if said else setting.expected.capitalize() + '.'}", look.text)
        first = Text(f"{problem[:1].upper()}{problem[1:]}.", look.error) if problem else help
        default = visible(text_of(setting.default)) or "empty"
        facts = f"{setting.name} · default: {default} · a change works {setting.spec.effect}"
        self._detail.update(Text.assemble(first, "\n", (facts, look.muted)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if event.option_list is self._list and (setting := self._setting) is not None:
            if setting.base is bool:
                self._set(not self._value(setting))
            else:
                self._editor.enter()

    def on_select_changed(self, event: Select.Changed) -> None:
        if self._editing and not (problem := self._commit()):
            self._list.focus()
        elif self._editing:
            self._explain(problem)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._search:
            self._fill()
        else:
            self._explain(self._problem())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._search:
            self._list.focus()
        elif problem := self._commit():
            self._explain(problem)
        else:
            self._list.focus()

    def action_leave(self) -> None:
        """Close; in the editor, take what was typed if it can be, and go back to the list."""
        if self._editing:
            problem = self._commit()
            self._list.focus()
            self._show()
            if problem:
                self._explain(f"it stays as it was: {problem}")
        elif self.focused is self._search:
            self._list.focus()
        else:
            self.dismiss()

    def action_switch(self) -> None:
        """From the list to the editor and back."""
        if self.focused is self._list and (setting := self._setting) is not None and setting.base is not bool:
            self._editor.enter()
        elif self.focused is not self._list:
            self.action_leave()

    def action_search(self) -> None:
        """Go to the search."""
        self._search.focus()

    def action_reset(self) -> None:
        """Give the setting at the cursor its default."""
        self._set(None)
        self._list.focus()

    def _problem(self) -> str:
        """What is wrong with what was typed, or ""."""
        try:
            self._editor.value  # noqa: B018 (it says so by raising)
        except ValueError as error:
            return str(error)
        return ""

    def _commit(self) -> str:
        """Take what was typed or chosen, if it is new; returns "" or why it cannot be."""
        try:
            if self._editor.changed:
                self._set(self._editor.value)
        except ValueError as error:
            return str(error)
        return ""

    def _set(self, value: Any) -> None:
        if (setting := self._setting) is None:
            return
        if notice := self._change(setting.name, value):
            self.notify(notice, severity="error", markup=False)
        self._list.replace_option_prompt(setting.name, self._line(setting))
        self._show()


def _value_style(look: Look, origin: str) -> Style:
    return Style.null() if origin == "default" else look.accent


def _words(setting: Setting) -> str:
    """What a search looks at."""
    spec = setting.spec
    return f"{setting.name} {spec.title} {spec.help} {spec.group}".lower()
