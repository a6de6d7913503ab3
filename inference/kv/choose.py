"""Which layout each layer's keys and values get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.errors import LayoutUnavailable
from inference.kv.layout import LayerGroup
from inference.kv.names import LAYOUTS
from inference.kv.tiered import COLD_BITS, HOT_TOKENS
from inference.models.config import ModelConfig


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
    if wanted == "bdpa":
        _check_bdpa(config)
    groups = []
    for window in sorted(windows, key=lambda window: window is None):
        layers = tuple(index for index, layer in enumerate(config.layers) if layer.window == window)
        layout, reason = _layout(window, wanted)
        groups.append(LayerGroup(layout, layers, window, reason, HOT_TOKENS if layout in COLD_BITS else 0))
    return _merged(groups)


def _check_bdpa(config: ModelConfig) -> None:
    """Raises LayoutUnavailable where shaders/kv/read_bdpa.wgsl cannot take 4 columns of a head at a time."""
    if config.head_dim % 4:
        raise LayoutUnavailable(
            f"the bdpa layout packs 4 numbers in a word, the head dimension of {config.name}, {config.head_dim}, is "
            "not a multiple of that; choose another --kv"
        )
    for rope in {layer.rope for layer in config.layers}:
        step = 4 if rope.interleaved else 8
        if rope.rotary_dim % step:
            raise LayoutUnavailable(
                f"the bdpa layout rotates keys when they are read, {step} columns at a time; {config.name} rotates "
                f"{rope.rotary_dim}, which is not a multiple of that; choose another --kv"
            )


def _layout(window: int | None, wanted: str) -> tuple[str, str]:
    if wanted in ("auto", "ring"):
        if window is not None:
            return "ring", f"these layers see {window} tokens: older ones are dropped"
        return "paged", "these layers see the whole context: pages are taken as needed and shared by forks"
    if wanted in COLD_BITS:
        older = f"{bits}-bit integers" if (bits := COLD_BITS[wanted]) else "pages shared by forks"
        return wanted, f"asked for: the last {HOT_TOKENS} tokens as they are, older ones in {older}"
    if wanted == "bdpa":
        return wanted, "asked for: a token id's first keys and values whole, later ones as 8-bit differences from them"
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
