"""The model of the chat: loaded, moved to another KV layout, told of in status bar and transcript."""

from __future__ import annotations

from collections.abc import Callable

from app.engine_events import Failed, Load, Loaded, LoadStarted, Unloaded
from app.engine_thread import EngineThread
from app.notes import layers_words, layouts_note, loaded_notes, place_note
from app.start import Start
from app.units import format_bytes
from app.widgets.load_bar import LoadBar
from app.widgets.render import NoteKind
from app.widgets.status_bar import Status, StatusBar
from inference.events import Loading, Notice
from inference.kv.names import SUMMARIES


class ModelControl:
    """Which model is loaded, and what is being loaded. `layout` is the KV layout of this model, or of the first.
    `gpu_layers` of its layers are on WebGPU, as many as fit where that is None.

    `note` writes in the transcript, `hint` shows a passing message, `replying` tells whether a reply is being written.
    """

    def __init__(
        self,
        engine: EngineThread,
        load_bar: LoadBar,
        status: StatusBar,
        note: Callable[[str, NoteKind], None],
        hint: Callable[[str], None],
        replying: Callable[[], bool],
        start: Start,
    ) -> None:
        self._engine = engine
        self._load_bar = load_bar
        self._status = status
        self._note = note
        self._hint = hint
        self._replying = replying
        self.layout, self.gpu_layers = start.kv, start.gpu_layers
        self._notices: list[str] = []
        self.loading = False
        self.loaded: Loaded | None = None

    def load(self, model: str) -> None:
        """Load a model by name or path, stopping what runs."""
        self._load(model, self.layout, self.gpu_layers)

    def use_layout(self, name: str) -> None:
        """Do what follows `/kv`: load the model anew with that layout; without a model, keep it for the next one."""
        if name not in SUMMARIES:
            by_layer = self.loaded.info.kv_layout if self.loaded else self.layout
            self._note(layouts_note(name, self.layout, by_layer), "notice")
        elif self._replying():
            self._hint(f"A reply is being written; Esc stops it, then /kv {name}.")
        elif self.loading:
            self._hint("The model is still loading; /kv comes after that.")
        elif self.loaded is None:
            self.layout = name
            self._note(f"The next model keeps its keys and values in the layout {name}.", "notice")
        elif name == self.layout:
            self._hint(f"The KV layout is {name} already.")
        else:
            self._load(self.loaded.source, name, self.gpu_layers)

    def place(self, text: str) -> None:
        """Do what follows `/place`: load the model anew with so many layers on WebGPU, or with as many as fit."""
        if not (text == "auto" or text.isdecimal()):
            self._note(place_note(text, self.gpu_layers, self.loaded.info if self.loaded else None), "notice")
            return
        count = None if text == "auto" else int(text)
        if self._replying():
            self._hint(f"A reply is being written; Esc stops it, then /place {text}.")
        elif self.loading:
            self._hint("The model is still loading; /place comes after that.")
        elif self.loaded is None:
            self.gpu_layers = count
            self._note(f"Of the next model, {layers_words(count)} run on WebGPU.", "notice")
        else:
            self._load(self.loaded.source, self.layout, count)

    def _load(self, model: str, layout: str, gpu_layers: int | None) -> None:
        self._engine.cancel()
        self.loading = True
        self._engine.submit(Load(model, layout, gpu_layers))

    def on_event(self, event: LoadStarted | Loading | Notice) -> None:
        """A load goes on."""
        match event:
            case LoadStarted():
                self._notices = []
                self._status.change(state="loading", busy=True)
                self._load_bar.progress = Loading(f"Looking for {event.model}", 0, 0)
            case Loading():
                self._load_bar.progress = event
            case Notice():
                self._notices.append(event.text)
                self._note(event.text, "notice")

    def on_unloaded(self, event: Unloaded) -> None:
        """No model is loaded."""
        self.loaded = None
        self._status.status = Status(state=self._status.status.state, busy=self._status.status.busy)
        self._note(f"{event.model} is unloaded; {format_bytes(event.freed_bytes)} freed.", "notice")

    def on_loaded(self, event: Loaded, goes_on: bool) -> None:
        """A model is ready; `goes_on` says that there is a conversation already."""
        info = event.info
        self.loaded, self.loading, self.layout = event, False, event.layout
        self.gpu_layers = event.gpu_layers
        self._load_bar.progress = None
        for note in loaded_notes(event, goes_on):
            if note not in self._notices:
                self._note(note, "notice")
        device = f"{info.device}+cpu" if info.placement else info.device
        self._status.status = Status(
            event.title, f"{device} {info.dtype}", "ready", tokens=event.kv.tokens, context=info.context
        )

    def on_failed(self, event: Failed) -> None:
        """Nothing new is loaded."""
        self.loading = False
        self._status.change(state="ready" if self.loaded else "no model", busy=False)
        self._note(event.message, "notice" if event.cancelled else "error")
