"""The settings screen, made from the settings' own descriptions: a row each, with an editor of its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static, TextArea

from app.sanitize import visible
from app.settings import Sources
from app.settings.values import Setting, text_of
from app.theme import make_look
from app.widgets.setting_row import SettingRow


class SettingsScreen(ModalScreen[None]):
    """Every setting, saved as soon as it is changed.

    `change` sets a value by name, None for the default, and returns a notice; it raises ValueError on a bad value.
    """

    DEFAULT_CSS = """
    SettingsScreen { align: center middle; }
    SettingsScreen > Vertical {
        width: 96; max-width: 100%; height: 92%; padding: 0 1;
        border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 55%;
    }
    SettingsScreen #search { background: $background; border: none; height: 1; padding: 0 1; margin: 0 0 1 0; }
    SettingsScreen #search:focus { border: none; background-tint: $background 0%; }
    SettingsScreen VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; background: $background; }
    SettingsScreen .group { color: $primary; text-style: bold; padding: 0 1; margin: 0 0 0 0; }
    SettingsScreen #detail { height: 3; padding: 0 1; margin: 1 0 0 0; }
    SettingsScreen.-narrow > Vertical { height: 100%; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="settings.close"),
        Binding("ctrl+f", "search", "Search", id="settings.search", priority=True),
        Binding("ctrl+r", "reset", "Back to the default", id="settings.reset", priority=True),
        Binding("down", "move(1)", "The next setting", id="settings.next", priority=True),
        Binding("up", "move(-1)", "The setting before", id="settings.previous", priority=True),
    ]

    def __init__(
        self,
        known: Callable[[], Mapping[str, Setting]],
        sources: Callable[[], Sources],
        change: Callable[[str, Any], str],
    ) -> None:
        super().__init__()
        self._known = known
        self._sources = sources
        self._change = change

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Settings"
            box.border_subtitle = "↑↓ move · enter opens · ctrl+r default · ctrl+f search · esc closes"
            yield Input(placeholder="Search", id="search")
            with VerticalScroll(can_focus=False):
                for group, settings in groupby(self._known().values(), lambda setting: setting.spec.group):
                    yield Static(group, classes="group", markup=False)
                    for setting in settings:
                        yield SettingRow(setting, self._sources(), self._set, self._refuse)
            yield Static(id="detail", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # In an open list and in a text of several lines, these keys move within.
        return not (action == "move" and isinstance(self.focused, OptionList | TextArea))

    def action_close(self) -> None:
        """Close, saving what is being edited if it can be."""
        if (row := self._row) is not None and not row.commit():
            self.app.notify(f"{row.setting.name} stays as it was.", severity="warning", markup=False)
        self.dismiss()

    def action_search(self) -> None:
        """Go to the search."""
        self.query_one("#search", Input).focus()

    def action_move(self, step: int) -> None:
        """Go to the next setting shown, or the one before; before the first is the search."""
        rows = [row for row in self.query(SettingRow) if row.display]
        at = rows.index(self._row) + step if self._row in rows else 0 if step > 0 else len(rows) - 1
        if 0 <= at < len(rows):
            rows[at].enter()
        elif at < 0:
            self.action_search()

    def action_reset(self) -> None:
        """Give the setting at the cursor its default."""
        if (row := self._row) is not None:
            self._set(row, None)

    @property
    def _row(self) -> SettingRow | None:
        if self.focused is None:
            return None
        return next((node for node in self.focused.ancestors if isinstance(node, SettingRow)), None)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._explain()

    def _explain(self, problem: str = "") -> None:
        look = make_look(self.app.theme_variables)
        detail = self.query_one("#detail", Static)
        if (row := self._row) is None:
            detail.update(Text("What is changed is saved at once.", look.muted))
            return
        setting = row.setting
        expected = "" if setting.spec.choices or setting.base in (bool, str) else f" Takes {setting.expected}."
        default = visible(text_of(setting.default)) or "empty"
        facts = f"{setting.name} · default: {default} · a change works {setting.spec.effect}"
        first = Text(problem, look.error) if problem else Text(f"{setting.spec.help}.{expected}", look.text)
        detail.update(Text.assemble(first, "\n", (facts, look.muted)))

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id != "search":
            return
        words = event.value.lower().split()
        heading, shown = None, False
        for child in self.query_one(VerticalScroll).children:
            if isinstance(child, SettingRow):
                child.display = all(word in child.words for word in words)
                shown = shown or child.display
                if heading is not None:
                    heading.display = shown
            else:
                heading, shown = child, False

    def _refuse(self, row: SettingRow, reason: str) -> None:
        if row is self._row:
            self._explain(reason)
        else:
            self.notify(f"{row.setting.name}: {reason}", severity="warning", markup=False)

    def _set(self, row: SettingRow, value: Any) -> None:
        notice = self._change(row.setting.name, value)
        row.show(self._sources())
        self._explain()
        if notice:
            self.notify(notice, severity="error", markup=False)
