"""The map of a cache: what stands in each place that it has set aside, layer group by layer group."""

from __future__ import annotations

from typing import Any

from inference.events import KvMapGroup
from inference.kv.layout import KvCache, Store
from inference.models.config import ModelConfig


def kv_map(cache: KvCache[Any], config: ModelConfig) -> tuple[KvMapGroup, ...]:
    """The map of `cache`: a group for the layers that share a store and a window, in order of their first layer."""
    groups = []
    for store in cache.stores:
        by_window: dict[int | None, list[int]] = {}
        for layer in store.group.layers:
            by_window.setdefault(config.layers[layer].window, []).append(layer)
        groups += [_group(cache, store, window, layers) for window, layers in by_window.items()]
    return tuple(sorted(groups, key=lambda group: group.layers[0]))


def _group(cache: KvCache[Any], store: Store, window: int | None, layers: list[int]) -> KvMapGroup:
    stats, cells = store.stats(cache.length, cache.context), store.cells(cache.length)
    ring = store.group.layout == "ring"
    if window is not None and cells and not ring:
        # The next query, at position `length`, sees the last window - 1 tokens and itself.
        unseen = max(0, cache.length - window + 1)
        cells = "o" * unseen + cells[unseen:]
    share = len(layers) / len(store.group.layers)
    return KvMapGroup(
        layout=store.group.layout,
        layers=tuple(layers),
        window=window,
        ring=ring,
        cells=cells,
        full=len(cells) if ring else max(len(cells), cache.context),
        used_bytes=round(stats.used_bytes * share),
        allocated_bytes=round(stats.allocated_bytes * share),
        device=store.group.device,
    )
