"""The memory panel: where the bytes are, live."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text
from textual.app import ComposeResult

from app.panels.body import Body
from app.panels.live_panel import LivePanel
from app.theme import Look, make_look
from app.units import format_bytes, format_count
from inference.events import KvStats, MemoryStats

_BAR = 16
_LIMITS = {
    "max-buffer-size": "largest buffer",
    "max-storage-buffer-binding-size": "largest binding",
    "max-compute-workgroup-storage-size": "workgroup memory",
    "max-compute-invocations-per-workgroup": "workgroup lanes",
}


class MemoryPanel(LivePanel):
    """Shows the latest `MemoryStats` and `KvStats`."""

    DEFAULT_CSS = """
    MemoryPanel { scrollbar-gutter: stable; }
    """
    HELP = """# Memory

    Where the bytes are now: weights by format, the KV cache, scratch and staging, with the peak so far.
    The figures are those of the code that allocates; arrows scroll."""
    BORDER_TITLE = "Memory"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._memory: MemoryStats | None = None
        self._kv: KvStats | None = None

    def compose(self) -> ComposeResult:
        yield Body(id="memory-body")

    def show_stats(self, memory: MemoryStats | None, kv: KvStats | None) -> None:
        """Take new figures; None, None when no model is loaded."""
        self._memory, self._kv = memory, kv
        self._changed()

    def _draw(self) -> None:
        look = make_look(self.app.theme_variables)
        text = memory_text(self._memory, self._kv, look, self.scrollable_content_region.width)
        self.query_one(Body).show(text)


def memory_text(memory: MemoryStats | None, kv: KvStats | None, look: Look, width: int) -> Text:
    """The panel's text for a width in cells."""
    if memory is None or kv is None:
        return Text("No model is loaded.", look.muted)
    width = max(24, width)
    out = Text(no_wrap=True)

    def row(name: str, value: str, strong: bool = False) -> None:
        out.append(f"{name[: width - len(value) - 1]:<{width - len(value)}}", look.text if strong else look.muted)
        out.append(value + "\n", look.text)

    def head(name: str) -> None:
        out.append(("\n" if out else "") + name + "\n", look.primary)

    head("In use")
    parts = {
        "weights": memory.weights_bytes,
        "KV cache": memory.kv_bytes,
        "scratch": memory.scratch_bytes,
        "staging": memory.staging_bytes,
    }
    whole = max(1, sum(parts.values()))
    bar = max(4, min(_BAR, width - 22))
    for name, size in parts.items():
        filled = round(bar * size / whole)
        value = format_bytes(size)
        out.append(f"{name:<9}", look.muted)
        out.append("━" * filled, look.primary)
        out.append("━" * (bar - filled), look.faint)
        out.append(value.rjust(width - 9 - bar) + "\n", look.text)
    row("total", format_bytes(sum(parts.values())), strong=True)
    row("peak on the device", format_bytes(memory.peak_bytes))
    row("peak of the process", format_bytes(memory.host_peak_bytes))
    for device, size in memory.bytes_by_device.items():
        row(f"on {device}", format_bytes(size))
    head("Weights by format")
    for name, size in sorted(memory.weights_by_format.items(), key=lambda item: -item[1]):
        row(name, format_bytes(size))
    head("KV cache")
    for group in kv.groups:
        row(f"{group.layout}, {format_count(len(group.layers), 'layer')}", format_bytes(group.allocated_bytes))
    row("tokens", f"{kv.tokens:,} / {kv.context:,}")
    row("used", format_bytes(kv.used_bytes))
    row("set aside", format_bytes(kv.allocated_bytes))
    row("at full context", format_bytes(kv.capacity_bytes))
    if kv.tokens:
        row("per token", format_bytes(kv.used_bytes // kv.tokens))
    if shown := _known_limits(memory.limits):
        head(f"Limits of {memory.device}"[:width])
        for name, value in shown.items():
            row(name, value)
    out.rstrip()
    return out


def _known_limits(limits: Mapping[str, int]) -> dict[str, str]:
    return {
        title: format_bytes(limits[name]) if "size" in name else f"{limits[name]:,}"
        for name, title in _LIMITS.items()
        if name in limits
    }
