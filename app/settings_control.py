"""The settings of a running application: what they do to it, and how they are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from textual.app import App
from textual.widget import Widget
from textual.widgets import Input, TextArea

from app.keys import KeyBinding, key_bindings, key_problem, keys_in_effect, usable_keys
from app.screens.settings import SettingsScreen
from app.settings import Settings, Sources
from app.settings.command import run_set
from app.settings.values import Setting, all_settings
from app.theme import choose_theme


class SettingsControl:
    """Applies settings to the application. `changed` is called with all of them after each change."""

    def __init__(
        self, app: App[None], sources: Sources, note: Callable[[str], None], changed: Callable[[Settings], None]
    ) -> None:
        self.sources = sources
        self._app = app
        self._note = note
        self._changed = changed
        self._motion = app.animation_level
        self._keymap: dict[str, str] = {}

    @property
    def settings(self) -> Settings:
        return self.sources.settings

    def start(self) -> None:
        """Put the settings into effect and tell what cannot be."""
        notices = self._apply()
        if self.settings.theme not in ("auto", *self._app.available_themes):
            notices += (f"There is no theme {self.settings.theme}; {self._app.theme} is used.",)
        for notice in notices:
            self._note(notice)

    def _apply(self) -> tuple[str, ...]:
        """Put theme, motion and keys into effect; returns what is wrong with the keys."""
        self._app.theme = self.theme
        self._app.animation_level = "none" if self.settings.reduced_motion else self._motion
        keymap, notices = usable_keys(self.settings.keys, key_bindings())
        if keymap != self._keymap:
            self._app.set_keymap(keymap)
            self._keymap = keymap
        return notices

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The keys in effect, by the ids of what they do."""
        return keys_in_effect(key_bindings(), self._keymap)

    @property
    def theme(self) -> str:
        """The name of the theme that the settings and the terminal lead to."""
        return choose_theme(self.settings.theme, self._app.available_themes, self._app.console.color_system)

    def steady(self, focused: Widget) -> None:
        """Keep the cursor of the widget from blinking, where there is to be little motion."""
        if self.settings.reduced_motion and isinstance(focused, Input | TextArea):
            focused.cursor_blink = False

    def known(self) -> Mapping[str, Setting]:
        """All settings that a person can change, by name; tables entry by entry."""
        found: dict[str, Setting] = {}
        for setting in all_settings().values():
            if setting.name == "theme":
                choices = ("auto", *sorted(self._app.available_themes))
                setting = replace(setting, spec=replace(setting.spec, choices=choices))
            entries = [setting]
            if setting.table:
                entries = [setting.entry(name) for name in self.sources.value(setting.name)]
            if setting.name == "keys":
                entries = [_key_setting(setting, binding) for binding in key_bindings()]
            found |= {entry.name: entry for entry in entries}
        return found

    def change(self, name: str, value: Any) -> str:
        """Set a value by name, None for the default; returns "" or why it was not saved.

        Raises ValueError, saying what was expected.
        """
        field, _, entry = name.partition(".")
        if field == "keys" and value is not None:
            known = key_bindings()
            binding = next(each for each in known if each.id == entry)
            if problem := key_problem(binding, value, self.settings.keys, known):
                raise ValueError(problem)
        self.sources, notice = self.sources.changed(name, value)
        self._apply()
        if name == "reduced_motion":
            for screen in self._app.screen_stack:
                for box in (*screen.query(Input), *screen.query(TextArea)):
                    box.cursor_blink = not self.settings.reduced_motion
        self._changed(self.settings)
        return notice

    def remember(self, name: str, value: Any) -> None:
        """Set what the application itself found out, such as the last model used."""
        if self.sources.file.get(name) != value and (notice := self.change(name, value)):
            self._note(notice)

    def run(self, argument: str) -> None:
        """Do what `/set ARGUMENT` asks for."""
        self._note(run_set(argument, self.known(), self.sources, self.change))

    def open(self) -> None:
        """Show the settings screen."""
        if not isinstance(self._app.screen, SettingsScreen):
            self._app.push_screen(SettingsScreen(self.known, lambda: self.sources, self.change))


def _key_setting(table: Setting, binding: KeyBinding) -> Setting:
    setting = table.entry(binding.id)
    spec = replace(setting.spec, title=binding.title, help=f"Keys of {binding.id}, with commas between")
    return replace(setting, spec=spec, default=", ".join(binding.keys))
