"""The KV map: what stands in each place of the cache, a row of cells for each group of layers, live."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult

from app.panels.body import Body
from app.panels.live_panel import LivePanel
from app.theme import Look, make_look
from app.units import format_bytes, format_count
from inference.events import KV_STATES, KvMapGroup

_MOST_LINES = 3  # of cells, a group
_NOT_TAKEN = "·"
# Glyphs differ as well as colours. Those that share one never come in one layout.
_GLYPHS = {"k": "█", "h": "█", "b": "█", "c": "▓", "q": "▒", "d": "▒", "s": "▚", "o": "░", "f": "▁"}


class KvPanel(LivePanel):
    """Shows the latest map."""

    HELP = """# KV map

    The KV cache by layers, each cell some tokens or slots, coloured by what they are: hot, cold, quantised, shared or
    free. It changes while a reply is written; arrows scroll."""
    BORDER_TITLE = "KV map"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._groups: tuple[KvMapGroup, ...] = ()

    def compose(self) -> ComposeResult:
        yield Body(id="kv-body")

    def show_map(self, groups: tuple[KvMapGroup, ...]) -> None:
        """Take a new map; an empty one when no model is loaded."""
        self._groups = groups
        self._changed()

    def _draw(self) -> None:
        look = make_look(self.app.theme_variables)
        self.query_one(Body).show(map_text(self._groups, look, self.scrollable_content_region.width))


def map_text(groups: Sequence[KvMapGroup], look: Look, width: int) -> Text:
    """The panel's text for a width in cells: each group with its head and its cells, then what the cells mean."""
    if not groups:
        return Text("No model is loaded.", look.muted)
    width = max(24, width)
    out, styles = Text(no_wrap=True), _styles(look)
    for group in groups:
        size = cell_size(group.full, width)
        out.append(_head(group, size, look, width)).append("\n")
        letters = cell_letters(group, size)
        if not letters:
            out.append("nothing is set aside yet\n", look.muted)
        for start in range(0, len(letters), width):
            for letter in letters[start : start + width]:
                out.append(_GLYPHS.get(letter, _NOT_TAKEN), styles.get(letter, look.faint))
            out.append("\n")
    return out.append(_legend(groups, styles, look))


def cell_size(places: int, width: int) -> int:
    """Places a cell stands for: the least power of two with which all of them fit in the lines of a group."""
    size = 1
    while -(-places // size) > width * _MOST_LINES:
        size *= 2
    return size


def cell_letters(group: KvMapGroup, size: int) -> str:
    """A letter for each `size` places: of what is held, the most frequent; "f" for free ones, " " for those not taken.

    So a cell is free only where nothing at all is held.
    """
    letters = []
    for start in range(0, group.full, size):
        cell = group.cells[start : start + size]
        held = [letter for letter in KV_STATES if letter != "f" and letter in cell]
        letters.append(max(held, key=cell.count, default="f" if cell else " "))
    return "".join(letters)


def layer_ranges(layers: Sequence[int]) -> str:
    """ "0-4, 6" for 0, 1, 2, 3, 4 and 6."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _head(group: KvMapGroup, size: int, look: Look, width: int) -> Text:
    """Layout, layers, device if split, and scale on the left, bytes used and set aside on the right."""
    tail = f"{format_bytes(group.used_bytes)} of {format_bytes(group.allocated_bytes)}"
    word = "slot" if group.ring else "token"
    scale = f"{format_count(size, word)} a cell"
    window = f" · window {group.window:,}" if group.window is not None else ""
    noun = "layer" if len(group.layers) == 1 else "layers"
    where = f" on {group.device}" if group.device else ""
    head = Text.assemble(
        (group.layout, look.primary), (f" {noun} {layer_ranges(group.layers)}{where}{window} · {scale}", look.muted)
    )
    head.truncate(width - len(tail) - 1, overflow="ellipsis", pad=True)
    return head.append(f" {tail}", look.text)


def _legend(groups: Sequence[KvMapGroup], styles: dict[str, Style], look: Look) -> Text:
    """What occurs, and what it is called; wrapped by the widget where the panel is narrow."""
    out = Text()
    for letter, name in KV_STATES.items():
        if any(letter in group.cells for group in groups):
            out.append(_GLYPHS[letter], styles[letter]).append(f" {name}  ", look.muted)
    return out.append(_NOT_TAKEN, look.faint).append(" not taken yet", look.muted)


def _styles(look: Look) -> dict[str, Style]:
    return {
        "k": look.primary,
        "h": look.accent,
        "b": look.primary,
        "c": look.secondary,
        "q": look.secondary,
        "d": look.secondary,
        "s": look.success,
        "o": look.muted,
        "f": look.faint,
    }
