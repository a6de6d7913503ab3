"""All panels of the chat: opened and closed together, filled with what the engine says."""

from __future__ import annotations

from collections.abc import Mapping

from textual.widget import Widget

from app.engine_thread import Loaded, LorasChanged
from app.panels.dtype_panel import DtypePanel
from app.panels.kv_panel import KvPanel
from app.panels.lora_panel import LoraPanel
from app.panels.memory_panel import MemoryPanel
from inference.events import Stats


class Panels:
    """The panels, by the names that the screen's bindings use: `memory` beside the transcript, the others below it."""

    def __init__(self, lora: LoraPanel) -> None:
        self.memory = MemoryPanel(id="memory")
        self._dtypes = DtypePanel(id="dtypes")
        self._kv = KvPanel(id="kv")
        self._lora = lora
        self.below: tuple[Widget, ...] = (self._dtypes, self._kv, lora)
        self._by_name: Mapping[str, Widget] = {str(panel.id): panel for panel in (self.memory, *self.below)}

    def toggle(self, name: str) -> None:
        """Open or close a panel. Where the window is small, opening one closes the others."""
        panel = self._by_name[name]
        panel.display = not panel.display
        size = panel.screen.size
        if panel.display and (size.width < 100 or size.height < 30):
            for other in self._by_name.values():
                other.display = other is panel
        if panel is self._lora and panel.display:
            self._lora.enter()

    def enter_lora(self) -> None:
        """Open the LoRA panel if it is closed, and go into it."""
        if self._lora.display:
            self._lora.enter()
        else:
            self.toggle("lora")

    def show_loaded(self, event: Loaded) -> None:
        """A model is ready."""
        self.memory.show_stats(event.memory, event.kv)
        self._kv.show_map(event.kv_map)
        self._dtypes.show_plans(event.decode, event.prefill)

    def show_stats(self, stats: Stats) -> None:
        """New figures of a reply."""
        self.memory.show_stats(stats.memory, stats.kv)
        self._kv.show_map(stats.kv_map)

    def show_adapted(self, event: LorasChanged) -> None:
        """Other adapters are in use: the plan and the weights are others."""
        self.memory.show_stats(event.memory, event.kv)
        self._dtypes.show_plans(event.decode, event.prefill)

    def forget(self) -> None:
        """No model is loaded."""
        self.memory.show_stats(None, None)
        self._kv.show_map(())
        self._dtypes.show_plans((), ())
