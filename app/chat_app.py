"""The composition root of the screen: settings, engine thread, chat screen, menu and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from app.engine_thread import EngineThread
from app.model_list import ModelEntry
from app.screens.chat import ChatScreen
from app.screens.help import HelpScreen
from app.screens.models import ModelMenu
from app.settings import Settings, save_settings, with_model
from app.start import Start
from app.theme import GLASS, GLASS_LIGHT
from app.widgets.prompt import Prompt
from inference.fit import Fit
from inference.kv.names import SUMMARIES


class ChatApp(App[None]):
    """Glasschat on a screen. `list_models` is asked each time the menu opens, with the device ("" if not known).

    `find_fit` tells whether a file fits that device; it may take seconds and is asked from another thread.
    """

    TITLE = "Glasschat"
    CSS_PATH = Path(__file__).parent / "screens" / "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True, tooltip="Leave Glasschat"),
        Binding("ctrl+p", "command_palette", "All", id="app.palette", priority=True, tooltip="Search all commands"),
        Binding("ctrl+c", "help_quit", show=False, system=True),
    ]

    def __init__(
        self,
        engine: EngineThread,
        list_models: Callable[[str], list[ModelEntry]],
        find_fit: Callable[[Path, str], Fit],
        settings: Settings,
        settings_file: Path,
        start: Start,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._list_models = list_models
        self._find_fit = find_fit
        self._settings = settings
        self._settings_file = settings_file
        self._start = start
        self._chat = ChatScreen(engine, start)
        self.register_theme(GLASS)
        self.register_theme(GLASS_LIGHT)

    def get_default_screen(self) -> Screen[None]:
        return self._chat

    def on_mount(self) -> None:
        self.theme = self._settings.theme if self._settings.theme in self.available_themes else GLASS.name
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        for notice in self._start.notices:
            self._chat.note(notice)
        if self._start.model:
            self._chat.load(self._start.model)
        else:
            self.call_after_refresh(self.action_models)

    def on_unmount(self) -> None:
        self._engine.shutdown()

    def action_models(self) -> None:
        """Open the model menu."""
        if isinstance(self.screen, ModelMenu):
            return
        device = self._chat.loaded_device or self._start.device
        entries = self._list_models(device)
        starter = next((entry.name for entry in entries if entry.starter), "")
        preferred = self._settings.model or starter
        menu = ModelMenu(entries, self._chat.loaded_path, preferred, lambda path: self._find_fit(path, device))
        self.push_screen(menu, lambda name: self._chat.load(name) if name else None)

    def action_help(self) -> None:
        """Open the help."""
        if isinstance(self.screen, HelpScreen):
            return
        keys: dict[str, tuple[list[str], str]] = {}
        for active in self._chat.active_bindings.values():
            binding = active.binding
            if binding.id:
                shown, _ = keys.setdefault(binding.id, ([], binding.tooltip or binding.description))
                shown.append(self.get_key_display(binding))
        declared = (*Prompt.BINDINGS, *ChatScreen.BINDINGS, *self.BINDINGS)
        ordered = [binding.id for binding in declared if isinstance(binding, Binding) and binding.id in keys]
        self.push_screen(HelpScreen([(", ".join(keys[id][0]), keys[id][1]) for id in ordered]))

    def on_chat_screen_model_loaded(self, event: ChatScreen.ModelLoaded) -> None:
        self._remember(with_model(self._settings, event.source))

    def _remember_theme(self, theme: Theme) -> None:
        self._remember(replace(self._settings, theme=theme.name))

    def _remember(self, settings: Settings) -> None:
        if settings == self._settings:
            return
        self._settings = settings
        if notice := save_settings(settings, self._settings_file):
            self._chat.note(notice)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        chat = self._chat
        yield SystemCommand("Models", "Choose a model, fetching it if needed", self.action_models)
        yield SystemCommand("Dtypes", "Show or hide the plan", lambda: chat.action_toggle_panel("dtypes"))
        yield SystemCommand("Memory", "Show or hide where the bytes are", lambda: chat.action_toggle_panel("memory"))
        yield SystemCommand("KV map", "Show or hide what the cache holds where", lambda: chat.action_toggle_panel("kv"))
        yield SystemCommand(
            "LoRA", "Show or hide the adapters and their strengths", lambda: chat.action_toggle_panel("lora")
        )
        for name, summary in SUMMARIES.items():
            yield SystemCommand(f"KV layout: {name}", summary, partial(chat.use_layout, name))
        yield SystemCommand("New conversation", "Forget what was said", chat.action_clear)
        yield SystemCommand("Copy the last reply", "As the model wrote it, without a thought", chat.action_copy_reply)
        yield SystemCommand("Thoughts", "Unfold or fold what models think", chat.action_toggle_thoughts)
        yield SystemCommand("Stop", "Stop the reply or the load", chat.action_stop)
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)
        yield SystemCommand("Help", "Keys and commands", self.action_help)
        yield SystemCommand("Quit", "Leave Glasschat", self.action_quit)
