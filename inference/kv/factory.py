"""Caches for the sequences of one executor: what they share (page pools), and each one's stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from inference.kv.bdpa import GpuBdpa, GpuBdpaPages, NumpyBdpa, NumpyBdpaPages
from inference.kv.contiguous import GpuContiguous, NumpyContiguous
from inference.kv.gpu_store import GpuMemory, GpuStore
from inference.kv.host_arrays import HostMemory
from inference.kv.layout import KvCache, LayerGroup, Store
from inference.kv.page_pool import PagePool
from inference.kv.paged import GpuPaged, GpuPages, NumpyPaged, NumpyPages, gpu_kv_pages
from inference.kv.ring import GpuRing, NumpyRing, RingSlots, gpu_rings
from inference.kv.tiered import GpuTiered, NumpyColdPages, NumpyTiered, Tiers, gpu_cold_pages
from inference.models.config import ModelConfig

UNLIMITED_PAGES = 2**31
"""Host memory sets no limit of its own to the pages."""


class NumpyStore(Store, Protocol):
    """A store in host memory, f32."""

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store k and v (K, T, E) at positions start .. start + T - 1."""

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values (K, end - first, E) of positions first .. end - 1."""


class NumpyCaches:
    """Makes the caches of the NumPy executor, whose steps take up to `chunk` tokens."""

    def __init__(self, config: ModelConfig, groups: Sequence[LayerGroup], chunk: int) -> None:
        self._config = config
        self._groups = tuple(groups)
        self._chunk = chunk
        self._memory = HostMemory()
        self._pages: dict[LayerGroup, NumpyPages] = {}
        self._cold_pages: dict[LayerGroup, NumpyColdPages] = {}
        self._basis_pages: dict[LayerGroup, NumpyBdpaPages] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that all caches hold."""
        return self._memory.nbytes

    def close(self) -> None:
        """Free the memory of every cache."""
        self._memory.close()

    def new(self, context: int, groups: Sequence[LayerGroup] | None = None) -> KvCache[NumpyStore]:
        """An empty cache for up to `context` tokens, with the layouts of `groups` where they are given."""
        return KvCache([self._store(group, context) for group in groups or self._groups], context)

    def _store(self, group: LayerGroup, context: int) -> NumpyStore:
        match group.layout:
            case "contiguous":
                return NumpyContiguous(group, self._config, context, self._memory)
            case "ring":
                assert group.window is not None
                slots = RingSlots(group.window, self._chunk, 0, context)
                return NumpyRing(group, self._config, slots, self._memory)
            case "paged":
                if group not in self._pages:
                    self._pages[group] = NumpyPages(group, self._config, PagePool(UNLIMITED_PAGES), self._memory)
                return NumpyPaged(group, self._config, self._pages[group])
            case "tiered" | "tiered-int8" | "tiered-int4":
                tiers = Tiers.of(group, self._chunk, 0, context)
                if group not in self._cold_pages:
                    pool = PagePool(UNLIMITED_PAGES)
                    self._cold_pages[group] = NumpyColdPages(group, self._config, pool, self._memory)
                return NumpyTiered(group, self._config, tiers, self._cold_pages[group], self._memory)
            case "bdpa":
                if group not in self._basis_pages:
                    self._basis_pages[group] = NumpyBdpaPages(group, self._config, UNLIMITED_PAGES, self._memory)
                return NumpyBdpa(group, self._config, self._basis_pages[group])
            case other:
                raise AssertionError(f"no NumPy store for {other}")


class GpuCaches:
    """Makes the caches of the WebGPU executor."""

    def __init__(self, config: ModelConfig, groups: Sequence[LayerGroup], memory: GpuMemory) -> None:
        self._config = config
        self._groups = tuple(groups)
        self._memory = memory
        self._pages: dict[LayerGroup, GpuPages] = {}
        self._rings: dict[tuple[LayerGroup, int], GpuPages] = {}
        self._cold_pages: dict[LayerGroup, GpuPages] = {}
        self._basis_pages: dict[LayerGroup, GpuBdpaPages] = {}

    def new(self, context: int, groups: Sequence[LayerGroup] | None = None) -> KvCache[GpuStore]:
        """An empty cache for up to `context` tokens, with the layouts of `groups` where they are given."""
        return KvCache([self._store(group, context) for group in groups or self._groups], context)

    def _store(self, group: LayerGroup, context: int) -> GpuStore:
        memory = self._memory
        match group.layout:
            case "contiguous":
                return GpuContiguous(group, self._config, context, memory)
            case "ring":
                assert group.window is not None
                slots = RingSlots(group.window, memory.chunk, memory.in_flight, context)
                key = group, slots.capacity
                if key not in self._rings:
                    self._rings[key] = gpu_rings(group, self._config, slots.capacity, memory)
                return GpuRing(group, self._config, slots, self._rings[key], memory)
            case "paged":
                if group not in self._pages:
                    self._pages[group] = gpu_kv_pages(group, self._config, memory)
                return GpuPaged(group, self._config, context, self._pages[group], memory)
            case "tiered" | "tiered-int8" | "tiered-int4":
                tiers = Tiers.of(group, memory.chunk, memory.in_flight, context)
                if group not in self._cold_pages:
                    self._cold_pages[group] = gpu_cold_pages(group, self._config, memory)
                return GpuTiered(group, self._config, context, tiers, self._cold_pages[group], memory)
            case "bdpa":
                if group not in self._basis_pages:
                    self._basis_pages[group] = GpuBdpaPages(group, self._config, memory)
                return GpuBdpa(group, self._config, context, self._basis_pages[group], memory)
            case other:
                raise AssertionError(f"no GPU store for {other}")
