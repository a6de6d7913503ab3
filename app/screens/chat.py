"""The chat: transcript, prompt, status and panels, and what their events do."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from app.conversation import Answer, Conversation
from app.engine_thread import (
    AppEvent,
    ChangeLoras,
    EngineThread,
    Failed,
    Generate,
    Load,
    Loaded,
    LoadStarted,
    LorasChanged,
    ReplyEvent,
    ReplyStarted,
    Unloaded,
)
from app.notes import dropped_note, figures_line, full_context_note, layouts_note, loaded_notes
from app.panels.panels import Panels
from app.screens.lora_control import LoraControl
from app.slash import COMMANDS, SlashCommand, parse_slash
from app.start import Start
from app.units import format_bytes
from app.widgets.load_bar import LoadBar
from app.widgets.prompt import Prompt
from app.widgets.render import NoteKind
from app.widgets.status_bar import Status, StatusBar
from app.widgets.transcript import Transcript
from inference.events import Finished, Loading, Notice, Prefill, Stats, Token
from inference.kv.names import SUMMARIES

_DRAINS_PER_S = 30
_FIGURES_PERIOD_S = {"full": 0.5, "basic": 0.5, "none": 2.0}  # by animation level; each change is a repaint


class ChatScreen(Screen[None]):
    """One conversation with one model."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", tooltip="Stop the reply, keeping its text, or the load"),
        Binding("f1", "app.help", "Help", id="chat.help", tooltip="Keys and commands"),
        Binding("f2", "toggle_panel('dtypes')", "Dtypes", id="chat.dtypes", tooltip="The plan: every op, its dtypes"),
        Binding("f3", "toggle_panel('memory')", "Mem", id="chat.memory", tooltip="Where the bytes are, live"),
        Binding("f4", "toggle_panel('kv')", "KV", id="chat.kv", tooltip="What the KV cache holds where, live"),
        Binding("f5,ctrl+o", "app.models", "Model", id="chat.models", tooltip="Choose a model"),
        Binding("f6", "toggle_panel('lora')", "LoRA", id="chat.lora", tooltip="The LoRA adapters and their strengths"),
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

    def __init__(self, engine: EngineThread, start: Start) -> None:
        super().__init__()
        self._engine = engine
        self.sampling = start.sampling
        self.max_tokens = start.max_tokens
        self._layout = start.kv
        self._conversation = Conversation(start.system)
        self._answer: Answer | None = None
        self._replies = 0
        self._load_asked = False
        self._load_notices: list[str] = []
        self._loaded: Loaded | None = None
        self._stats: Stats | None = None
        self._stats_shown = 0.0
        self._loras = LoraControl(engine, self.note, self._hint, lambda: self._answer is not None, start.loras)
        self._panels = Panels(self._loras.panel)

    def compose(self) -> ComposeResult:
        with Container(id="middle"):
            yield Transcript(id="transcript")
            yield self._panels.memory
        yield from self._panels.below
        yield LoadBar(id="load")
        yield Prompt(self._accept, id="prompt")
        yield StatusBar(id="status")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._transcript = self.query_one(Transcript)
        self._status = self.query_one(StatusBar)
        self._load_bar = self.query_one(LoadBar)
        self._transcript.add("title", "Glasschat")
        self._transcript.add("notice", "A chat with a model on your own machine. F1 shows the keys, F5 the models.")
        self.query_one(Prompt).focus()
        self.set_interval(1 / _DRAINS_PER_S, self._drain)

    # What the person does

    def load(self, model: str) -> None:
        """Load a model by name or path, stopping what runs."""
        self._load(model, self._layout)

    def use_layout(self, name: str) -> None:
        """Load the model anew with that KV layout; without a model, keep the layout for the next one."""
        if self._answer is not None or self._transcript.writing:
            self._hint(f"A reply is being written; Esc stops it, then /kv {name}.")
        elif self._load_asked:
            self._hint("The model is still loading; /kv comes after that.")
        elif self._loaded is None:
            self._layout = name
            self.note(f"The next model keeps its keys and values in the layout {name}.")
        elif name == self._layout:
            self._hint(f"The KV layout is {name} already.")
        else:
            self._load(self._loaded.source, name)

    def _load(self, model: str, layout: str) -> None:
        self._engine.cancel()
        self._load_asked = True
        self._engine.submit(Load(model, layout))

    def note(self, text: str, kind: NoteKind = "notice") -> None:
        """Say something in the transcript."""
        self._transcript.add(kind, text)

    def _accept(self, text: str) -> bool:
        """Send a message or run a command; False leaves the text in the prompt, and says why."""
        if (command := parse_slash(text)) is not None:
            if command.name not in COMMANDS:
                self._hint(f"There is no command /{command.name}. /help lists them.")
                return False
            self._run_command(command)
            return True
        if self._load_asked:
            self._hint("The model is still loading. Your message stays in the box.")
        elif self._loaded is None:
            self._hint("No model is loaded: F5 opens the menu. Your message stays in the box.")
        elif self._answer is not None or self._transcript.writing:
            self._hint("A reply is being written; Esc stops it. Your message stays in the box.")
        else:
            self._send(text)
            return True
        return False

    def _hint(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=4, markup=False)

    def _send(self, text: str) -> None:
        assert self._loaded is not None
        self._transcript.add("user", text)
        self._conversation = self._conversation.with_question(text)
        self._replies += 1
        self._answer = Answer(self._replies)
        self._transcript.begin_reply(self._loaded.title)
        messages = self._conversation.messages()
        self._engine.submit(Generate(self._replies, messages, self.sampling, self.max_tokens))
        self._set_status(state="reading", busy=True, rate=0.0)

    def _run_command(self, command: SlashCommand) -> None:
        match command.name:
            case "model" if command.argument:
                self.load(command.argument)
            case "kv" if command.argument in SUMMARIES:
                self.use_layout(command.argument)
            case "kv":
                by_layer = self._loaded.info.kv_layout if self._loaded else self._layout
                self.note(layouts_note(command.argument, self._layout, by_layer))
            case "lora" if command.argument:
                self._loras.run(command.argument)
            case "lora":
                self._panels.enter_lora()
            case "system" if command.argument:
                self._conversation = replace(self._conversation, system=command.argument)
                self.note("The system prompt is set for what follows.")
            case "system":
                system = self._conversation.system
                self.note(f"System prompt: {system}" if system else "There is no system prompt.")
            case "drop":
                self._drop(command.argument)
            case "clear":
                self.action_clear()
            case "copy":
                self.action_copy_reply()
            case "model":
                self.app.call_later(self.app.run_action, "models")
            case name:
                self.app.call_later(self.app.run_action, name)

    def _drop(self, count: str) -> None:
        if self._answer is not None or self._transcript.writing:
            self._hint("A reply is being written; Esc stops it, then /drop.")
        elif count and (not count.isdecimal() or int(count) == 0):
            self._hint(f"/drop takes a number of questions, not {count}.")
        else:
            self._conversation, dropped = self._conversation.without_oldest(int(count or 1))
            self.note(dropped_note(dropped))

    def action_clear(self) -> None:
        """Start over with an empty conversation."""
        if self._answer is not None or self._transcript.writing:
            self._hint("A reply is being written; Esc stops it, then /clear.")
            return
        self._conversation = replace(self._conversation, turns=())
        self._transcript.clear()
        self.note("A new conversation.")

    def action_copy_reply(self) -> None:
        """Copy the last reply, raw but without its thought, to the clipboard."""
        if not (text := self._conversation.last_answer()):
            self._hint("There is no reply to copy yet." if text is None else "The last reply has no answer to copy.")
            return
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied the last reply, {len(text)} characters.", timeout=3)

    def action_copy_text(self) -> None:
        super().action_copy_text()
        self.notify("Copied.", timeout=2)

    def action_stop(self) -> None:
        """Stop the reply or the load; with neither, go back to the prompt."""
        if self._answer is None and not self._load_asked and not self._loras.busy:
            self.query_one(Prompt).focus()
            return
        self._drain()
        if self._answer is not None:
            self._answer.stopped = True
            self._set_status(state="stopping")
        self._engine.cancel()

    def action_toggle_panel(self, name: str) -> None:
        """Open or close a panel."""
        self._panels.toggle(name)
        if not (self.focused and all(node.display for node in self.focused.ancestors_with_self)):
            self.query_one(Prompt).focus()

    def action_toggle_thoughts(self) -> None:
        """Unfold all thoughts, or fold them."""
        self._transcript.toggle_thoughts()

    def action_scroll(self, where: str) -> None:
        """Scroll the transcript: page_up, page_down, home or end."""
        getattr(self._transcript, f"scroll_{where}")(animate=False)

    # What the engine says

    def _drain(self) -> None:
        for event in self._engine.drain():
            if isinstance(event, ReplyEvent):
                self._on_reply_event(event)
            else:
                self._on_app_event(event)
        if self._answer is not None:
            self._show(self._answer)

    def _show(self, answer: Answer) -> None:
        thought, text = answer.release()
        if thought:
            self._transcript.think(thought, answer.thought_tokens, answer.thought_s)
        self._transcript.feed(text)

    def _on_reply_event(self, wrapped: ReplyEvent) -> None:
        event, answer = wrapped.event, self._answer
        if answer is None or answer.number != wrapped.reply:
            return
        match event:
            case ReplyStarted():
                answer.begin(event.marks, event.thinking)
            case Token():
                # A token sampled before the engine heard of the stop is not shown; held-back text (id -1) is.
                if not (answer.stopped and event.id >= 0):
                    answer.take(event)
            case Prefill():
                done = event.done < event.total
                self._set_status(state=f"reading {event.done}/{event.total}" if done else "writing")
            case Stats():
                self._stats = event
                if time.monotonic() - self._stats_shown > _FIGURES_PERIOD_S[self.app.animation_level]:
                    self._show_stats()
            case Notice():
                self.note(event.text)
            case Finished():
                self._finish(answer, figures_line(event.reason, event.timings, self._loras.applied))
                if event.reason == "context":
                    self.note(full_context_note(self._conversation, self._status.status.context))
                self._set_status(rate=event.timings.decode_tps)
                self._loras.on_reply(event.timings.decode_tps)

    def _show_stats(self) -> None:
        if (stats := self._stats) is not None:
            self._stats, self._stats_shown = None, time.monotonic()
            self._panels.show_stats(stats)
            self._set_status(rate=stats.timings.decode_tps, tokens=stats.kv.tokens, context=stats.kv.context)

    def _finish(self, answer: Answer, figures: str) -> None:
        answer.end()
        self._show(answer)
        self._answer = None
        self._conversation = self._conversation.with_reply(answer.raw, answer.answer)
        self.note(figures, "figures")
        self._transcript.end_reply()
        self._show_stats()
        self._set_status(state="ready", busy=False)

    def _on_app_event(self, event: AppEvent) -> None:
        match event:
            case LoadStarted():
                self._load_notices = []
                self._set_status(state="loading", busy=True)
                self._load_bar.progress = Loading(f"Looking for {event.model}", 0, 0)
            case Loading():
                self._load_bar.progress = event
            case Notice():
                self._load_notices.append(event.text)
                self.note(event.text)
            case Unloaded():
                self._forget_model()
                self.note(f"{event.model} is unloaded; {format_bytes(event.freed_bytes)} freed.")
            case Loaded():
                self._on_loaded(event)
            case LorasChanged():
                self._load_bar.progress = None
                self._panels.show_adapted(event)
                self._loras.on_changed(event)
            case Failed():
                self._on_failed(event)

    def _forget_model(self) -> None:
        self._loaded = None
        self._panels.forget()
        self._loras.on_unloaded()
        self._status.status = Status(state=self._status.status.state, busy=self._status.status.busy)

    def _on_loaded(self, event: Loaded) -> None:
        info = event.info
        self._loaded, self._load_asked, self._layout = event, False, event.layout
        self._load_bar.progress = None
        self._panels.show_loaded(event)
        for note in loaded_notes(event, bool(self._conversation.turns)):
            if note not in self._load_notices:
                self.note(note)
        self._status.status = Status(
            event.title, f"{info.device} {info.dtype}", "ready", tokens=event.kv.tokens, context=info.context
        )
        self._loras.on_loaded(event.decode)
        self.post_message(self.ModelLoaded(event.source, info.path))

    def _on_failed(self, event: Failed) -> None:
        self._load_bar.progress = None
        if isinstance(event.command, Load):
            self._load_asked = False
            self._set_status(state="ready" if self._loaded else "no model", busy=False)
            self.note(event.message, "notice" if event.cancelled else "error")
            return
        if isinstance(event.command, ChangeLoras):
            self._loras.on_failed(event)
            return
        answer = self._answer
        if answer is None or answer.number != event.command.reply:
            return
        if answer.raw:
            self._finish(answer, "stopped" if event.cancelled else "broken off")
        else:
            self._answer = None
            self._conversation = self._conversation.without_last()
            self._transcript.end_reply()
            self._set_status(state="ready", busy=False)
            self.note("No reply; the message is not part of the conversation.")
        if not event.cancelled:
            self.note(event.message, "error")

    def _set_status(self, **changes: object) -> None:
        self._status.status = replace(self._status.status, **changes)  # type: ignore[arg-type]

    # For the help and the menu

    @property
    def loaded_path(self) -> str:
        """The file of the loaded model, or ""."""
        return self._loaded.info.path if self._loaded else ""

    @property
    def loaded_device(self) -> str:
        """The device of the loaded model, or ""."""
        return self._loaded.info.device if self._loaded else ""
