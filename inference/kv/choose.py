"""Which layout each layer's keys and values get."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import LayoutUnavailable
from inference.kv.layout import LayerGroup
from inference.models.config import ModelConfig

LAYOUTS = ("contiguous", "paged", "ring")
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
    groups = []
    for window in sorted(windows, key=lambda window: window is None):
        layers = tuple(index for index, layer in enumerate(config.layers) if layer.window == window)
        layout, reason = _layout(window, wanted)
        groups.append(LayerGroup(layout, layers, window, reason))
    return _merged(groups)


def _layout(window: int | None, wanted: str) -> tuple[str, str]:
    if wanted in ("auto", "ring"):
        if window is not None:
            return "ring", f"these layers see {window} tokens: older ones are dropped"
        return "paged", "these layers see the whole context: pages are taken as needed and shared by forks"
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
            merged[merged.index(last)] = LayerGroup(group.layout, layers, None, group.reason)
    return tuple(sorted(merged, key=lambda group: group.layers[0]))
