"""Where the sequences of a batch keep their keys and values: tables on the GPU with a row for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.errors import BatchRefused
from inference.gpu.buffers import BufferPool
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.gpu_store import GpuStore, SharingStore
from inference.kv.layout import KvCache


class BatchTables:
    """Tables for up to `rows` sequences with the layouts and the context of `cache`.

    `programs` is for the executor: what it built for the present buffers.
    """

    def __init__(self, device: Any, pool: BufferPool, cache: KvCache[GpuStore], rows: int) -> None:
        self._device = device
        self._stores = sharing_stores(cache)
        self.context = cache.context
        self.layouts: dict[int, CacheLayout] = {
            layer: store.shared_layout(layer) for store in self._stores for layer in store.group.layers
        }
        self._tables = {
            store.places_binding: pool.create("scratch", rows * store.max_places * 4, "places of a batch")
            for store in self._stores
        }
        self.programs: dict[Any, Any] = {}

    @property
    def version(self) -> int:
        """Rises whenever a buffer is replaced."""
        return sum(store.shared.version for store in self._stores)

    def buffers(self) -> dict[Binding, Any]:
        """The tables, and the buffers of all sequences."""
        shared = {binding: buffer for store in self._stores for binding, buffer in store.shared.by_binding.items()}
        return shared | self._tables

    def fill(self, caches: Sequence[KvCache[GpuStore]]) -> None:
        """Write where these sequences have their places now: in each group's table, u32 (N, max_places), a row each."""
        by_group = zip(*map(sharing_stores, caches), strict=True)
        for store, stores in zip(self._stores, by_group, strict=True):
            table = np.zeros((len(caches), store.max_places), np.uint32)
            for row, each in zip(table, stores, strict=True):
                row[: len(each.places)] = each.places
            self._device.queue.write_buffer(self._tables[store.places_binding], 0, table)


def sharing_stores(cache: KvCache[GpuStore]) -> list[SharingStore]:
    """The stores of a cache. Raises BatchRefused where one has buffers of its own."""
    stores: list[SharingStore] = []
    for store in cache.stores:
        if not isinstance(store, SharingStore):
            raise BatchRefused(
                f"WebGPU cannot take a token of several sequences in one step with the {store.group.layout} layout, "
                "where each has buffers of its own; use --kv auto or --kv paged"
            )
        stores.append(store)
    return stores
