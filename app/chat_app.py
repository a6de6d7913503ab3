"""The composition root of the screen: settings, engine thread, chat screen, menu and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.theme import Theme

from app import clipboard, completion
from app.engine_thread import EngineThread
from app.help_topics import topic_at, topic_of
from app.keys import key_bindings
from app.model_list import ModelEntry
from app.options import SAMPLING_NAMES
from app.panels.names import PANELS
from app.panels.panels import Panels
from app.sanitize import visible
from app.screens.chat import ChatScreen
from app.screens.help import HelpScreen
from app.screens.models import ModelMenu
from app.settings import Settings, Sources, with_model
from app.settings_control import SettingsControl
from app.start import Start
from app.store.store import Store
from app.theme import THEMES
from app.widgets.message_bar import MESSAGE_KEYS, MessageBar
from inference.fit import Fit
from inference.kv.names import SUMMARIES


class ChatApp(App[None]):
    """Glasschat on a screen. `list_models` is asked each time the menu opens, with the device ("" if not known).

    `find_fit` tells whether a file fits that device; it may take seconds and is asked from another thread.
    """

    TITLE = "Glasschat"
    CSS_PATH = Path(__file__).parent / "screens" / "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="app.help", priority=True, tooltip="Help for where you are"),
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True, tooltip="Leave Glasschat"),
        Binding("ctrl+p", "command_palette", "All", id="app.palette", priority=True, tooltip="Search all commands"),
        Binding("f9", "settings", "Settings", id="app.settings", show=False, tooltip="All settings, and the keys"),
        Binding("ctrl+c", "help_quit", show=False, system=True),
    ]

    def __init__(
        self,
        engine: EngineThread,
        store: Store,
        list_models: Callable[[str], list[ModelEntry]],
        find_fit: Callable[[Path, str], Fit],
        sources: Sources,
        start: Start,
    ) -> None:
        # Without colours there is no use in those of a theme: what is left are the terminal's own two.
        super().__init__(ansi_color=True if sources.no_color else None)
        self._engine = engine
        self._list_models = list_models
        self._find_fit = find_fit
        self._start = start
        self._settings = SettingsControl(self, sources, self._note, self._use)
        arguments = {"model": completion.words(self._model_names), "set": completion.settings(self._known_settings)}
        self._chat = ChatScreen(engine, store, start, arguments, self._shown_keys)
        for theme in THEMES:
            self.register_theme(theme)

    def get_default_screen(self) -> Screen[None]:
        return self._chat

    def on_mount(self) -> None:
        self._settings.start()
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        shown = self._chat.panels.restore(self._settings.settings.open_panels, self._settings.settings.panel_sizes)
        for notice in (*self._start.notices, *shown):
            self._note(notice)
        if self._start.model:
            # Once something is shown: the engine's imports would compete for the interpreter.
            self.call_after_refresh(self._chat.model.load, self._start.model)
        else:
            self.call_after_refresh(self.action_models)

        if self._start.resume:
            self._chat.call_after_refresh(self._chat.history.resume)
        if self._settings.settings.sidebar:
            self._chat.call_after_refresh(self._chat.restore_history)

    def _note(self, text: str) -> None:
        """Say something in the transcript, as soon as there is one."""
        self._chat.call_later(self._chat.note, text)

    def on_unmount(self) -> None:
        self._engine.shutdown()
        self._chat.conversation.leave()
        self._chat.alternatives.leave()
        self._chat.twin.leave()

    def action_models(self) -> None:
        """Open the model menu."""
        if isinstance(self.screen, ModelMenu):
            return
        loaded = self._chat.model.loaded
        device = loaded.info.device if loaded else self._start.device
        entries = self._list_models(device)
        starter = next((entry.name for entry in entries if entry.starter), "")
        preferred = self._settings.settings.model or starter
        menu = ModelMenu(
            entries, loaded.info.path if loaded else "", preferred, lambda path: self._find_fit(path, device)
        )
        self.push_screen(menu, lambda name: self._chat.model.load(name) if name else None)

    def _model_names(self) -> dict[str, str]:
        return {entry.name: entry.title for entry in self._list_models(self._start.device)}

    def _known_settings(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        return {name: (each.spec.title, each.values) for name, each in self._settings.known().items()}

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text in every way there is, and say what came of it."""
        self._copy(text, clipboard.size_of(text))

    def on_chat_screen_copying(self, event: ChatScreen.Copying) -> None:
        self._copy(event.text, event.what)

    def _copy(self, text: str, what: str) -> None:
        self._clipboard = text  # what pasting within the application takes
        self.run_worker(self._copy_and_tell(text, what), group="copy")

    async def _copy_and_tell(self, text: str, what: str) -> None:
        assert self._driver is not None
        outcome = await clipboard.copy(text, self._driver.write, self._settings.sources.multiplexer)
        severity: SeverityLevel = "information" if outcome.program else "warning" if outcome.sent else "error"
        self.notify(visible(outcome.told(what)), severity=severity, timeout=4, markup=False)

    def action_help(self) -> None:
        """Open the help for where the focus is, or close it."""
        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
            return
        on_message = self.screen is self._chat and self._chat.on_message
        topic = topic_of(MessageBar, MESSAGE_KEYS) if on_message else topic_at(self.screen)
        self.push_screen(HelpScreen(topic, key_bindings(), self._shown_keys()))

    def _shown_keys(self) -> dict[str, tuple[str, ...]]:
        """The keys in effect as they are shown, by the ids of what they do."""
        return {
            id: tuple(self.get_key_display(Binding(key, "")) for key in keys)
            for id, keys in self._settings.keys.items()
        }

    def on_chat_screen_model_loaded(self, event: ChatScreen.ModelLoaded) -> None:
        self._settings.remember("model", with_model(self._settings.settings, event.source).model)

    def on_chat_screen_history_toggled(self, event: ChatScreen.HistoryToggled) -> None:
        self._settings.remember("sidebar", event.shown)

    def on_chat_screen_set(self, event: ChatScreen.Set) -> None:
        self._settings.run(event.argument)

    def on_panels_changed(self, event: Panels.Changed) -> None:
        self._settings.remember("open_panels", event.open)
        for name, size in event.sizes.items():
            self._settings.remember(f"panel_sizes.{name}", size)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._settings.steady(event.widget)

    def action_settings(self) -> None:
        """Open the settings."""
        self._settings.open()

    def _remember_theme(self, theme: Theme) -> None:
        if theme.name != self._settings.theme:
            self._settings.remember("theme", theme.name)

    def _use(self, settings: Settings) -> None:
        changes = {name: getattr(settings, name) for name in SAMPLING_NAMES}
        conversation = self._chat.conversation
        conversation.sampling = replace(conversation.sampling, **changes)
        conversation.max_tokens = settings.max_tokens

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        chat = self._chat
        yield SystemCommand("Models", "Choose a model, fetching it if needed", self.action_models)
        for name, panel in PANELS.items():
            yield SystemCommand(panel.title, f"Show or hide {panel.help}", partial(chat.action_toggle_panel, name))
        for name, summary in SUMMARIES.items():
            yield SystemCommand(f"KV layout: {name}", summary, partial(chat.model.use_layout, name))
        yield SystemCommand("New conversation", "Begin another; this one is kept", chat.history.new)
        yield SystemCommand("Conversations", "Show or hide those so far", chat.action_toggle_history)
        yield SystemCommand("Edit", "Change the last question, as another branch", chat.messages.edit)
        yield SystemCommand("Retry", "Let the model answer the last question again", chat.messages.retry)
        yield SystemCommand(
            "Alternatives", "Several replies to the last question at once", partial(chat.alternatives.run, "")
        )
        yield SystemCommand("Twin lanes", "Two configurations side by side", partial(chat.twin.run, ""))
        yield SystemCommand("Fork", "Go on in a conversation of its own", chat.history.fork)
        yield SystemCommand("Branch before", "Show the branch before this one", partial(chat.messages.branch, -1))
        yield SystemCommand("Branch after", "Show the branch after this one", partial(chat.messages.branch, 1))
        yield SystemCommand("Export", "Write the conversation to a Markdown file", partial(chat.history.export, ""))
        yield SystemCommand("Copy", "The chosen message, or the last reply's answer", chat.action_copy_message)
        yield SystemCommand("Go on", "With the chosen reply, or the last one, if it was cut off", chat.action_go_on)
        yield SystemCommand("Thoughts", "Unfold or fold what models think", chat.action_toggle_thoughts)
        yield SystemCommand("Stop", "Stop the reply or the load", chat.action_stop)
        yield SystemCommand("Settings", "All settings, and the keys", self.action_settings)
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)
        yield SystemCommand("Help", "Keys and commands", self.action_help)
        yield SystemCommand("Quit", "Leave Glasschat", self.action_quit)
