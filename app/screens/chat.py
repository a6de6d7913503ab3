"""The chat: transcript, prompt, status and panels, and what their events do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from app.candidates import MOST
from app.completion import ArgumentSource, Completer, adapters, files, words
from app.engine_events import (
    AppEvent,
    ChangeLoras,
    Failed,
    Generate,
    GenerateMany,
    Load,
    Loaded,
    LoadStarted,
    LorasChanged,
    ManyEvent,
    ReplyEvent,
    Unloaded,
)
from app.engine_thread import EngineThread
from app.panels.panels import Panels
from app.panels.tokens_panel import TokensPanel
from app.screens.alternatives_control import AlternativesControl
from app.screens.conversation_control import ConversationControl
from app.screens.copy_control import CopyControl
from app.screens.history_control import HistoryControl
from app.screens.lora_control import LoraControl
from app.screens.message_control import MessageControl
from app.screens.model_control import ModelControl
from app.screens.side_replies import ChatParts
from app.screens.slash_commands import COMMANDS, run_command
from app.screens.twin_control import TwinControl
from app.slash import parse_slash
from app.start import Start
from app.store.store import Store
from app.token_count import CountTokens, TokensCounted
from app.twin_command import differences
from app.twin_engine import GapEvent, GenerateTwin, SetTwin, TwinSet
from app.widgets.guide import Guide
from app.widgets.load_bar import LoadBar
from app.widgets.message_bar import MessageBar
from app.widgets.prompt import Prompt
from app.widgets.render import NoteKind
from app.widgets.status_bar import StatusBar
from app.widgets.transcript import Transcript
from inference.events import Loading, Notice
from inference.kv.names import SUMMARIES

_DRAINS_PER_S = 30


class ChatScreen(Screen[None]):
    """The widgets of the chat and its keys, and the parts that do the work; it hands the engine's events to them.

    `model` is what is loaded, `conversation` what is said, `messages` what is done with one message, `alternatives`
    several replies at once, `twin` two lanes, `copying` what can be copied, `history` the other conversations, `loras`
    the adapters, `panels` what is shown of the engine.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 (as Textual declares it)
    # Those with `priority` would else be typed into the prompt, or be its own.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", tooltip="Stop the reply, keeping its text, or the load"),
        Binding("f2", "toggle_panel('dtypes')", "The plan: every op, its dtypes", show=False, id="chat.dtypes"),
        Binding("f3", "toggle_panel('memory')", "Where the bytes are, live", show=False, id="chat.memory"),
        Binding("f4", "toggle_panel('kv')", "What the KV cache holds where, live", show=False, id="chat.kv"),
        Binding("f5,ctrl+o", "app.models", "Model", id="chat.models", tooltip="Choose a model"),
        Binding("f6", "toggle_panel('lora')", "The LoRA adapters and their strengths", show=False, id="chat.lora"),
        Binding("f7", "panels", "Panels", id="chat.panels", tooltip="All panels: kernels, timing, tokens, prompt too"),
        Binding("f8", "toggle_history", "Chats", id="chat.history", tooltip="The conversations so far"),
        Binding("alt+up", "choose(-1)", "Choose the message above", show=False, id="chat.choose_above"),
        Binding("alt+down", "choose(1)", "Choose the message below", show=False, id="chat.choose_below"),
        Binding("alt+e", "edit_message", "Edit the question", show=False, id="chat.edit_message", priority=True),
        Binding("alt+r", "retry", "Answer the question again", show=False, id="chat.retry", priority=True),
        Binding("alt+n", "fork", "Fork at the chosen message", show=False, id="chat.fork", priority=True),
        Binding("alt+left", "branch(-1)", "To the branch before", show=False, id="chat.older_branch"),
        Binding("alt+right", "branch(1)", "To the branch after", show=False, id="chat.newer_branch"),
        Binding("alt+g", "go_on", "Go on with a reply that was cut off", show=False, id="chat.go_on", priority=True),
        Binding("alt+c", "copy_message", "Copy the message", show=False, id="chat.copy_message", priority=True),
        Binding("ctrl+t", "toggle_thoughts", "Unfold or fold what models think", show=False, id="chat.thoughts"),
        Binding("ctrl+c,super+c", "copy_text", "Copy the selection", show=False, id="chat.copy"),
        Binding("pageup", "scroll('page_up')", "Scroll up", show=False, id="chat.page_up", priority=True),
        Binding("pagedown", "scroll('page_down')", "Scroll down", show=False, id="chat.page_down", priority=True),
        Binding("ctrl+home", "scroll('home')", "To the beginning", show=False, id="chat.home", priority=True),
        Binding("ctrl+end", "scroll('end')", "To the end", show=False, id="chat.end", priority=True),
    ]

    class ModelLoaded(Message):
        """A model is ready; `source` is what was asked for, and `path` its file."""

        def __init__(self, source: str, path: str) -> None:
            super().__init__()
            self.source = source
            self.path = path

    class Copying(Message):
        """A text is to be copied; `what` it is, in words."""

        def __init__(self, text: str, what: str) -> None:
            super().__init__()
            self.text = text
            self.what = what

    class Set(Message):
        """`/set` was typed, with that after it."""

        def __init__(self, argument: str) -> None:
            super().__init__()
            self.argument = argument

    class HistoryToggled(Message):
        """The sidebar was opened or closed by the person."""

        def __init__(self, shown: bool) -> None:
            super().__init__()
            self.shown = shown

    def __init__(
        self,
        engine: EngineThread,
        store: Store,
        start: Start,
        arguments: Mapping[str, ArgumentSource],
        keys: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        """`arguments` complete what may follow those slash commands that the chat cannot complete by itself; `keys`
        gives those in effect as they are shown, by the ids of bindings.
        """
        super().__init__()
        self._guide = Guide(keys) if start.guide else None
        self._engine = engine
        self._transcript = Transcript(id="transcript")
        self._load_bar = LoadBar(id="load")
        own = {
            "kv": words(lambda: SUMMARIES),
            "lora": adapters(lambda: (each.adapter.name for each in self.loras.applied)),
            "twin": differences,
            "alternatives": words(lambda: {str(count): "replies at once" for count in range(2, MOST + 1)}),
            "export": files(".md", ".json"),
            "import": files(".json"),
        }
        self._prompt = Prompt(self._accept, Completer(COMMANDS, {**arguments, **own}), start.editor, id="prompt")
        self._status = StatusBar(id="status")
        self.loras: LoraControl = LoraControl(
            engine, self.note, self.hint, lambda: self.conversation.answering, start.loras
        )
        self.panels: Panels = Panels(engine, self.loras.panel)
        self.model: ModelControl = ModelControl(
            engine, self._load_bar, self._status, self.note, self.hint, lambda: self.conversation.busy, start
        )
        self.conversation: ConversationControl = ConversationControl(
            engine,
            store,
            self._transcript,
            self._status,
            self.model,
            self.loras,
            self.note,
            self.hint,
            self.panels.show_stats,
            start,
        )
        self._bar = MessageBar()
        self.messages: MessageControl = MessageControl(
            self.conversation, self._transcript, self._prompt, self._bar, self.hint
        )
        parts = ChatParts(
            engine, self.conversation, self.messages, self._transcript, self._status, self.note, self.hint
        )
        self.alternatives: AlternativesControl = AlternativesControl(parts)
        self.twin: TwinControl = TwinControl(parts, self.model, self.loras)
        self.copying: CopyControl = CopyControl(
            self.conversation, self.messages, lambda text, what: self.post_message(self.Copying(text, what)), self.hint
        )
        self.history: HistoryControl = HistoryControl(
            store, self.conversation, self.messages, self._transcript, self._prompt, self.note, self.hint
        )

    def compose(self) -> ComposeResult:
        yield self.history.sidebar
        with Container(id="middle"):
            yield self._transcript
            yield self.panels.beside
            if self._guide is not None:
                yield self._guide
        yield self.panels.below
        yield self._load_bar
        yield self._bar
        yield self._prompt
        yield self._status
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.note("Glasschat", "title")
        self.note("A chat with a model on your own machine. F1 shows the keys, F5 the models.")
        self._prompt.focus()
        self.set_interval(1 / _DRAINS_PER_S, self._drain)
        self.conversation.view.begin(self.history.recall)

    @property
    def on_message(self) -> bool:
        """Whether keys are for a chosen message, rather than for a text or a panel."""
        return self.messages.chosen is not None and self._prompt.has_focus

    # What the person does

    def note(self, text: str, kind: NoteKind = "notice") -> None:
        """Say something in the transcript."""
        self._transcript.add(kind, text)

    def hint(self, text: str) -> None:
        """Say something that passes."""
        self.notify(text, severity="warning", timeout=4, markup=False)

    def _accept(self, text: str) -> bool:
        """Send a message or run a command; False leaves the text in the prompt, and says why."""
        if (command := parse_slash(text)) is not None:
            return run_command(self, command)
        if self.conversation.send(text, self.messages.editing):
            self.messages.done()
            self.history.sidebar.reload()
            return True
        return False

    def on_prompt_drafted(self, event: Prompt.Drafted) -> None:
        files = tuple(file.text for file in event.files)
        before = self.conversation.messages(self.messages.editing)
        self._engine.count(CountTokens(event.number, event.text, files, before))

    def action_copy_message(self) -> None:
        """Copy the chosen message, or the last reply's answer."""
        self.copying.chosen()

    def action_go_on(self) -> None:
        """Let the model go on with the chosen reply, or the last one."""
        self.messages.go_on()

    def action_stop(self) -> None:
        """Stop the reply or the load; with neither, choose no message, or go back to the prompt."""
        if not self.conversation.answering and not self.model.loading and not self.loras.busy:
            if not self.messages.leave():
                self._prompt.focus()
            return
        self._drain()
        self.conversation.stop()
        self.alternatives.stop()
        self.twin.stop()
        self.panels.stop()
        self._engine.cancel()

    def action_toggle_panel(self, name: str) -> None:
        """Open or close a panel."""
        self.panels.toggle(name)
        if not (self.focused and all(node.display for node in self.focused.ancestors_with_self)):
            self._prompt.focus()

    def action_panels(self) -> None:
        """Choose a panel to open or close."""
        self.panels.choose(self.action_toggle_panel)

    def show_history(self, shown: bool) -> None:
        """Show or hide the sidebar."""
        sidebar = self.history.sidebar
        sidebar.display = shown
        if shown:
            sidebar.reload()
        elif sidebar.has_focus_within:
            self._prompt.focus()

    def restore_history(self) -> None:
        """Show the sidebar as it was shown before, where there is room beside it."""
        self.show_history(not self.has_class("-narrow"))

    def action_toggle_history(self) -> None:
        """Go to the conversations, opening them if need be; from there, close them."""
        sidebar = self.history.sidebar
        self.show_history(not sidebar.has_focus_within)
        if sidebar.display:
            sidebar.enter()
        self.post_message(self.HistoryToggled(sidebar.display))

    def on_panels_changed(self, event: Panels.Changed) -> None:
        if self._guide is not None:
            self._guide.display = not event.open

    def on_tokens_panel_branch_from(self, event: TokensPanel.BranchFrom) -> None:
        self.conversation.branch_from(event.text)

    def on_history_sidebar_opened(self) -> None:
        self._prompt.focus()
        if self.has_class("-narrow"):
            self.show_history(False)

    def on_history_sidebar_left(self) -> None:
        self.on_history_sidebar_opened()

    def on_transcript_near_top(self) -> None:
        self.conversation.view.older(self.conversation.tree)

    def action_choose(self, step: int) -> None:
        """Choose the message above or below the chosen one."""
        self.messages.choose(step)

    def action_edit_message(self) -> None:
        """Edit the chosen question, or the last one."""
        self.messages.edit()

    def action_retry(self) -> None:
        """Let the model answer the chosen question, or the last one, again."""
        self.messages.retry()

    def action_fork(self) -> None:
        """Go on in a conversation of its own from the chosen message on."""
        self.history.fork()

    def action_branch(self, step: int) -> None:
        """Go to another branch."""
        self.messages.branch(step)

    def action_toggle_thoughts(self) -> None:
        """Unfold all thoughts, or fold them."""
        self._transcript.toggle_thoughts()

    def action_scroll(self, where: str) -> None:
        """Scroll the transcript: page_up, page_down, home or end."""
        getattr(self._transcript, f"scroll_{where}")(animate=False)

    # What the engine says

    def _drain(self) -> None:
        for event in self._engine.drain():
            self.panels.hear(event)
            if isinstance(event, ReplyEvent):
                self.conversation.on_event(event)
            elif isinstance(event, ManyEvent):
                self.alternatives.on_event(event)
                self.twin.on_event(event)
            elif isinstance(event, GapEvent):
                self.twin.on_gap(event)
            else:
                self._on_app_event(event)
        self.conversation.show()
        self.alternatives.show()
        self.twin.show()
        self.history.drain()
        if self._guide is not None and self.conversation.begun:
            self._guide.remove()
            self._guide = None

    def _on_app_event(self, event: AppEvent) -> None:
        match event:
            case LoadStarted() | Loading() | Notice():
                self.model.on_event(event)
            case Unloaded():
                self.loras.on_unloaded()
                self.model.on_unloaded(event)
            case Loaded():
                self.model.on_loaded(event, self.conversation.begun)
                self.loras.on_loaded(event.decode)
                self.post_message(self.ModelLoaded(event.source, event.info.path))
            case LorasChanged():
                self._load_bar.progress = None
                self.loras.on_changed(event)
            case TwinSet():
                self._load_bar.progress = None
                self.twin.on_set(event)
            case TokensCounted():
                self._prompt.show_count(event, self._status.status.context)
            case Failed():
                self._on_failed(event)

    def _on_failed(self, event: Failed) -> None:
        self._load_bar.progress = None
        match event.command:
            case Load():
                self.model.on_failed(event)
            case ChangeLoras():
                self.loras.on_failed(event)
            case Generate(reply=reply):
                self.conversation.on_failed(event, reply)
            case GenerateMany(number=number):
                self.alternatives.on_failed(event, number)
            case GenerateTwin(number=number):
                self.twin.on_failed(event, number)
            case SetTwin():
                self.twin.on_set_failed(event)
