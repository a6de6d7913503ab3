"""Which layout each layer's keys and values get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.errors import LayoutUnavailable
from inference.kv.layout import LayerGroup
from inference.kv.tiered import COLD_BITS, HOT_TOKENS
from inference.models.config import ModelConfig

LAYOUTS = ("contiguous", "paged", "ring", *COLD_BITS)
"""The layouts by name; "auto" chooses by layer."""


def choose_layouts(config: ModelConfig, wanted: str) -> tuple[LayerGroup, ...]:
    """The layers by layout, in order of their first layer, with the reasons.

    Raises LayoutUnavailable for a name that is not known, or a layout that this model cannot use.
    """
    if wanted not in ("auto", *LAYOUTS):
        raise LayoutUnavailable(f"there is no KV layout {wanted!r}; choose auto or one of {', '.join(LAYOUTS)}")
    windows = {layer.window for layer in config.layers}
    if wanted == "ring" and windows == {None}:
        raise LayoutUnavailable(
            f"the ring layout needs layers with a sliding window, {config.name} has none; use --kv auto"
        )
    if (bits := COLD_BITS.get(wanted)) and config.head_dim * bits % 32:
        raise LayoutUnavailable(
            f"the {wanted} layout packs {32 // bits} numbers in a word, the head dimension of {config.name}, "
            f"{config.head_dim}, is not a multiple of that; choose another --kv"
        )
    groups = []
    for window in sorted(windows, key=lambda window: window is None):
        layers = tuple(index for index, layer in enumerate(config.layers) if layer.window == window)
        layout, reason = _layout(window, wanted)
        groups.append(LayerGroup(layout, layers, window, reason, HOT_TOKENS if layout in COLD_BITS else 0))
    return _merged(groups)


def _layout(window: int | None, wanted: str) -> tuple[str, str]:
    if wanted in ("auto", "ring"):
        if window is not None:
            return "ring", f"these layers see {window} tokens: older ones are dropped"
        return "paged", "these layers see the whole context: pages are taken as needed and shared by forks"
    if wanted in COLD_BITS:
        older = f"{bits}-bit integers" if (bits := COLD_BITS[wanted]) else "pages shared by forks"
        return wanted, f"asked for: the last {HOT_TOKENS} tokens as they are, older ones in {older}"
    return wanted, "asked for"


def _merged(groups: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Groups with one layout become one, except rings, whose size is that of their window."""
    merged: list[LayerGroup] = []
    for group in groups:
        last = next((other for other in merged if other.layout == group.layout != "ring"), None)
        if last is None:
            merged.append(group)
        else:
            layers = tuple(sorted(last.layers + group.layers))
            merged[merged.index(last)] = replace(group, layers=layers, window=None)
    return tuple(sorted(merged, key=lambda group: group.layers[0]))
