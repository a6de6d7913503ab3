"""All panels of the chat: opened and closed together, filled with what the engine says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget

from app.engine_events import (
    AppEvent,
    Failed,
    Generate,
    KernelsMeasured,
    Loaded,
    LorasChanged,
    MeasureKernels,
    ReplyEvent,
    ReplyStarted,
    Unloaded,
)
from app.engine_thread import EngineThread
from app.panels.dock import Column, Rows
from app.panels.dtype_panel import DtypePanel
from app.panels.kernels_panel import KernelsPanel
from app.panels.kv_panel import KvPanel
from app.panels.lora_panel import LoraPanel
from app.panels.memory_panel import MemoryPanel
from app.panels.names import PANELS
from app.panels.prompt_panel import PromptPanel
from app.panels.reply_trace import ReplyTrace
from app.panels.timing_panel import TimingPanel
from app.panels.tokens_panel import TokensPanel
from app.screens.panel_menu import PanelMenu
from inference.events import Finished, Stats

_BESIDE = ("memory", "timing")
_BELOW = ("dtypes", "kernels", "kv", "prompt", "tokens", "lora")
_LEAST, _MOST = 5, 200
_STEP_ROWS, _STEP_COLUMNS = 2, 4
_SETTLE_S = 0.3
_TURN_S = 0.03


class Panels:
    """The panels by name, `beside` the transcript and `below` it, and which of them are open, in what size."""

    class Changed(Message):
        """Other panels are open now, or panels have other sizes: rows, or columns of those beside the transcript."""

        def __init__(self, open: tuple[str, ...], sizes: Mapping[str, int]) -> None:
            super().__init__()
            self.open = open
            self.sizes = sizes

    def __init__(self, engine: EngineThread, lora: LoraPanel) -> None:
        self._trace = ReplyTrace()
        self._memory = MemoryPanel(id="memory")
        self._timing = TimingPanel(self._trace, id="timing")
        self._dtypes = DtypePanel(id="dtypes")
        self._kernels = KernelsPanel(lambda phase: engine.submit(MeasureKernels(phase)), id="kernels")
        self._kv = KvPanel(id="kv")
        self._prompt = PromptPanel(self._trace, id="prompt-panel")
        self._tokens = TokensPanel(self._trace, id="tokens")
        below = (self._dtypes, self._kernels, self._kv, self._prompt, self._tokens, lora)
        self.beside = Column((self._memory, self._timing), self._arrange, self._resize, "beside")
        self.below = Rows(below, self._arrange, self._resize, "below")
        panels = (*self.beside.panels, *self.below.panels)
        self._by_name = dict(zip((*_BESIDE, *_BELOW), panels, strict=True))
        self._sizes = {name: PANELS[name].size for name in self._by_name}
        self._open: list[str] = []
        self._settles: Timer | None = None
        self._of_reply = (self._timing, self._prompt, self._tokens)
        self._stats: Stats | None = None
        """Of the reply that is written, where memory and KV map may still have to show it."""

    def restore(self, open: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Open these panels, in these sizes; returns a notice for each that does not exist."""
        self._sizes |= {name: size for name, size in sizes.items() if name in self._by_name}
        self._open = [name for name in open if name in self._by_name]
        if self.below.is_mounted:
            self._arrange()
        unknown = [name for name in dict.fromkeys((*open, *sizes)) if name not in self._by_name]
        known = ", ".join(self._by_name)
        return tuple(f"There is no panel {name}, which the settings name; there are {known}." for name in unknown)

    def toggle(self, name: str) -> None:
        """Open or close a panel. Where the window is small, opening one closes the others."""
        if self._by_name[name].display:
            self._open.remove(name)
        else:
            self._open = [name] if self._small else [*(each for each in self._open if each != name), name]
        self.below.screen.maximized = None
        self._arrange()
        if name == "lora" and self._by_name[name].display:
            self._enter(name)
        self._tell()

    def choose(self, toggle: Callable[[str], None]) -> None:
        """Let the person choose a panel for `toggle` from all of them; one that is opened so is also entered."""

        def chosen(name: str | None) -> None:
            if name is None:
                return
            toggle(name)
            if self._by_name[name].display:
                self._enter(name)

        shown = [name for name, panel in self._by_name.items() if panel.display]
        app, active = self.below.app, self.below.screen.active_bindings.values()
        keys = {each.binding.id: app.get_key_display(each.binding) for each in active}
        app.push_screen(PanelMenu(shown, {name: keys.get(f"chat.{name}", "") for name in PANELS}), chosen)

    def enter_lora(self) -> None:
        """Open the LoRA panel if it is closed, and go into it."""
        if self._by_name["lora"].display:
            self._enter("lora")
        else:
            self.toggle("lora")

    def hear(self, event: AppEvent) -> None:
        """Take what the engine says. What changes many times a second is shown with the next `show_stats`."""
        match event:
            case ReplyEvent():
                self._trace.hear(event.event)
                if isinstance(event.event, ReplyStarted | Finished):
                    self._show_reply()
            case Failed(command=Generate()):
                self._trace.stop()
                self._show_reply()
            case Loaded():
                self._stats = None
                self._trace.clear()
                self._trace.vocabulary = event.vocabulary
                self._timing.show_device(event.info.device, sum(row.moved_bytes for row in event.decode))
                self._memory.show_stats(event.memory, event.kv)
                self._kv.show_map(event.kv_map)
                self._show_plans(event)
            case LorasChanged():
                self._stats = None
                self._memory.show_stats(event.memory, event.kv)
                self._show_plans(event)
            case Unloaded():
                self._stats = None
                self._trace.clear()
                self._trace.vocabulary = None
                self._memory.show_stats(None, None)
                self._kv.show_map(())
                self._show_plans(None)
            case KernelsMeasured(times):
                self._kernels.show_times(times)
            case Failed(command=MeasureKernels()):
                self._kernels.show_failure(event.message)

    def stop(self) -> None:
        """The person has stopped the reply."""
        self._trace.stop()

    def show_stats(self, stats: Stats) -> None:
        """New figures of a reply. Each panel has a turn of its own, so that a key need not wait for all of them."""
        self._stats = stats
        turns = (self._draw_memory, self._draw_map, *(panel.show_reply for panel in self._of_reply))
        for turn, draw in enumerate(turns):
            self.below.set_timer((turn + 1) * _TURN_S, draw)

    def _show_plans(self, event: Loaded | LorasChanged | None) -> None:
        plans = (event.decode, event.prefill) if event else ((), ())
        self._dtypes.show_plans(*plans)
        self._kernels.show_plans(*plans)
        if not isinstance(event, LorasChanged):
            self._show_reply()

    def _show_reply(self) -> None:
        for panel in self._of_reply:
            panel.show_reply()

    def _draw_memory(self) -> None:
        if self._stats is not None:
            self._memory.show_stats(self._stats.memory, self._stats.kv)

    def _draw_map(self) -> None:
        if self._stats is not None:
            self._kv.show_map(self._stats.kv_map)

    @property
    def _small(self) -> bool:
        size = self.below.screen.size
        return size.width < 100 or size.height < 30

    def _arrange(self) -> None:
        small = self._small
        shown = self._open[-1:] if small else self._open
        for dock in (self.beside, self.below):
            names = [name for name in shown if self._by_name[name] in dock.panels]
            dock.place({self._by_name[name]: self._sizes[name] for name in names}, small)

    def _enter(self, name: str) -> None:
        panel = self._by_name[name]
        target = next((each for each in panel.walk_children(Widget, with_self=True) if each.focusable), None)
        if target is not None:
            target.focus()

    def _resize(self, panel: Widget, by: int) -> None:
        dock, step = (self.beside, _STEP_COLUMNS) if panel in self.beside.panels else (self.below, _STEP_ROWS)
        peers = dock.peers(panel)
        names = [name for name, each in self._by_name.items() if each in peers]
        size = max(self._sizes[name] for name in names) + by * step
        self._sizes |= dict.fromkeys(names, min(_MOST, max(_LEAST, size)))
        self._arrange()
        # A key that is held is told once.
        if self._settles is not None:
            self._settles.stop()
        self._settles = self.below.set_timer(_SETTLE_S, self._tell)

    def _tell(self) -> None:
        changed = {name: size for name, size in self._sizes.items() if size != PANELS[name].size}
        self.below.screen.post_message(self.Changed(tuple(self._open), changed))
