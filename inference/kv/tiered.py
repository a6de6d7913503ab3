"""The tiered layouts: the last tokens in a hot ring in the cache's dtype, older ones in cold pages that forks share.

Cold pages hold the same dtype ("tiered") or integers with a scale ("tiered-int8", "tiered-int4"; the idea is that of
KIVI, arXiv:2402.02750, whose recent tokens stay unquantised too). A token is read from exactly one tier: below the
boundary cold, else hot. The boundary moves when a step begins: what lies `hot` tokens and those in flight behind its
first row is demoted. So taking back what is in flight never leaves fewer than `hot` tokens hot. Demoting is for good:
a truncated sequence keeps cold what was cold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from inference.events import KvGroupStats
from inference.kernels.dispatch import STATE, Binding, CacheLayout, Constant, Dispatch
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory, LayerArrays
from inference.kv.layout import LayerGroup
from inference.kv.page_pool import PAGE_TOKENS, PagePool, pages_for
from inference.kv.paged import GROWTH_PAGES, GpuPages, PageTable
from inference.kv.quantize import Bits, RowFormat
from inference.models.config import ModelConfig

COLD_BITS: Mapping[str, Bits] = {"tiered": 0, "tiered-int8": 8, "tiered-int4": 4}
"""The tiered layouts, with the bits of an integer in a cold page; 0 for pages in the cache's dtype."""

HOT_TOKENS = 256

DEMOTE_SIZE = 64
# A prefill step demotes as many tokens as it takes, a decode step one: so many workgroups a head take turns.
DEMOTE_WORKGROUPS = 16


@dataclass
class Tiers:
    """Where the boundary between the tiers of one sequence is: positions below `cold` are cold."""

    lag: int
    """The least by which the boundary is behind the first row of a step."""
    capacity: int
    """Tokens of the hot ring: those above the boundary, and the rows of a step."""
    cold: int = 0

    @staticmethod
    def of(group: LayerGroup, chunk: int, in_flight: int, context: int) -> Tiers:
        """For steps of up to `chunk` tokens, up to `in_flight` tokens computed beyond what the host has seen."""
        lag = group.hot + in_flight
        return Tiers(lag, min(context, lag + chunk))

    def after(self, length: int) -> int:
        """Where the boundary is in a step that begins behind `length` tokens (advance_tiers.wgsl does the same)."""
        return max(self.cold, length - self.lag)


def tiered_stats(
    group: LayerGroup,
    tiers: Tiers,
    token_bytes: tuple[int, int],
    length: int,
    pages: int,
    allocated: bool,
    context: int,
) -> KvGroupStats:
    """Stats of tiers that take `token_bytes` (hot, cold) a token and layer; shared pages count for each sequence."""
    hot_bytes, cold_bytes = (len(group.layers) * size for size in token_bytes)
    ring_bytes, page_bytes = tiers.capacity * hot_bytes, PAGE_TOKENS * cold_bytes
    return KvGroupStats(
        layout=group.layout,
        reason=group.reason,
        layers=group.layers,
        held_tokens=length,
        used_bytes=(length - tiers.cold) * hot_bytes + tiers.cold * cold_bytes,
        allocated_bytes=(ring_bytes if allocated else 0) + pages * page_bytes,
        capacity_bytes=ring_bytes + pages_for(max(0, context - tiers.lag)) * page_bytes,
    )


def tiered_cells(group: LayerGroup, tiers: Tiers, table: PageTable, length: int, allocated: bool) -> str:
    """Cold tokens, hot ones, then what is free in the hot ring and in the pages."""
    if not allocated:
        return ""
    hot = length - tiers.cold
    free = tiers.capacity - hot + table.free_tokens(tiers.cold)
    return table.cells(tiers.cold, "q" if COLD_BITS[group.layout] else "c") + "h" * hot + "f" * free


def row_format(group: LayerGroup, config: ModelConfig) -> RowFormat:
    """The format of the group's cold rows."""
    return RowFormat(COLD_BITS[group.layout], config.head_dim)


class NumpyColdPages:
    """The cold pages of all sequences in host memory: (pages, PAGE_TOKENS, K, columns) a layer, grown in steps."""

    def __init__(self, group: LayerGroup, config: ModelConfig, pool: PagePool, memory: HostMemory) -> None:
        self.pool = pool
        self.format = row_format(group, config)
        self._shape = (PAGE_TOKENS, config.num_kv_heads, self.format.columns)
        dtype = np.uint32 if self.format.bits else np.float32
        self.rows = {layer: np.zeros((0, *self._shape), dtype) for layer in group.layers}
        memory.register(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(rows.nbytes for rows in self.rows.values())

    def clear(self) -> None:
        """Drop the pages."""
        self.rows = {layer: rows[:0].copy() for layer, rows in self.rows.items()}

    def grow(self, pages: int) -> None:
        for layer, rows in self.rows.items():
            if pages > len(rows):
                more = -(-pages // GROWTH_PAGES) * GROWTH_PAGES - len(rows)
                self.rows[layer] = np.concatenate((rows, np.zeros((more, *self._shape), rows.dtype)))

    def copy(self, old: int, new: int) -> None:
        for rows in self.rows.values():
            rows[new] = rows[old]


class NumpyTiered:
    """One sequence in host memory: a hot ring (K, capacity, E), f32, and cold pages."""

    def __init__(
        self, group: LayerGroup, config: ModelConfig, tiers: Tiers, pages: NumpyColdPages, memory: HostMemory
    ) -> None:
        self.group = group
        self.tiers = tiers
        self._config = config
        self._pages = pages
        self._memory = memory
        self.table = PageTable(pages.pool)
        self._hot = LayerArrays(group.layers, memory)

    def missing(self, tokens: int, length: int) -> bool:
        return not self._hot.keys or _takes_page(self.table, self.tiers, length)

    def ensure(self, tokens: int, length: int) -> None:
        if not self._hot.keys:
            self._hot.resize((self._config.num_kv_heads, self.tiers.capacity, self._config.head_dim), axis=1, keep=0)
        if _takes_page(self.table, self.tiers, length):
            self.table.extend(self.tiers.after(length), self.tiers.cold, self._pages)

    def begin(self, length: int) -> None:
        first, end = self.tiers.cold, self.tiers.after(length)
        if first < end:
            positions = np.arange(first, end)
            for layer, rows in self._pages.rows.items():
                k, v = self._hot_view(layer, first, end)
                # (K, T, E) -> (T, K, columns)
                encoded = self._pages.format.encode(k.transpose(1, 0, 2), v.transpose(1, 0, 2))
                rows[np.asarray(self.table.pages)[positions // PAGE_TOKENS], positions % PAGE_TOKENS] = encoded
        self.tiers.cold = end

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        at = np.arange(start, start + k.shape[1]) % self.tiers.capacity
        self._hot.keys[layer][:, at] = k
        self._hot.values[layer][:, at] = v

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        boundary = min(max(first, self.tiers.cold), end)
        cold_k, cold_v = self._cold_view(layer, first, boundary)
        hot_k, hot_v = self._hot_view(layer, boundary, end)
        return np.concatenate((cold_k, hot_k), axis=1), np.concatenate((cold_v, hot_v), axis=1)

    def truncate(self, length: int, present: int) -> int:
        self.tiers.cold = min(self.tiers.cold, length)
        self.table.truncate(self.tiers.cold)
        return length

    def fork(self, length: int) -> NumpyTiered:
        other = NumpyTiered(self.group, self._config, replace(self.tiers), self._pages, self._memory)
        other._hot, other.table = self._hot.copy(), self.table.fork(self.tiers.cold)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        rows = 4 * self._config.num_kv_heads
        token_bytes = (rows * 2 * self._config.head_dim, rows * self._pages.format.columns)
        pages, allocated = len(self.table.pages), bool(self._hot.keys)
        return tiered_stats(self.group, self.tiers, token_bytes, length, pages, allocated, context)

    def cells(self, length: int) -> str:
        return tiered_cells(self.group, self.tiers, self.table, length, bool(self._hot.keys))

    def close(self) -> None:
        self.tiers.cold = 0
        self.table.truncate(0)
        self._hot.clear()

    def _hot_view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(first, end) % self.tiers.capacity
        return self._hot.keys[layer][:, at], self._hot.values[layer][:, at]

    def _cold_view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        start = first // PAGE_TOKENS
        used = self._pages.rows[layer][self.table.pages[start : pages_for(end)]]  # (pages, PAGE_TOKENS, K, columns)
        rows = used.reshape(-1, *used.shape[2:])[first - start * PAGE_TOKENS : end - start * PAGE_TOKENS]
        k, v = self._pages.format.decode(rows)
        return k.transpose(1, 0, 2), v.transpose(1, 0, 2)


def gpu_cold_pages(group: LayerGroup, config: ModelConfig, memory: GpuMemory) -> GpuPages:
    """The cold pages of all sequences in GPU buffers, one a layer: (pages, PAGE_TOKENS, K, columns)."""
    bindings = [Binding("kv", f"{layer}.cold") for layer in group.layers]
    return GpuPages(bindings, _gpu_token_bytes(group, config, memory)[1], memory)


class GpuTiered(InBuffers):
    """One sequence in GPU buffers: a hot ring (capacity, K, 2, E) a layer, and cold pages.

    One more buffer for all layers holds the boundary, which the GPU moves by itself, and the page table.
    """

    def __init__(
        self,
        group: LayerGroup,
        config: ModelConfig,
        context: int,
        tiers: Tiers,
        pages: GpuPages,
        memory: GpuMemory,
    ) -> None:
        self.group = group
        self.tiers = tiers
        self._config = config
        self._context = context
        self._pages = pages
        self._memory = memory
        self.table = PageTable(pages.pool)
        self._tiers_binding = Binding("kv", f"{group.layers[0]}.tiers")
        self._buffers = BufferSet(memory)
        self._token_bytes = _gpu_token_bytes(group, config, memory)

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return self._pages.buffers, self._buffers

    def layout(self, layer: int) -> CacheLayout:
        hot, cold = Binding("kv", f"{layer}.hot"), Binding("kv", f"{layer}.cold")
        constants: dict[str, Constant] = {
            "COLD_BITS": COLD_BITS[self.group.layout],
            "RING_CAPACITY": self.tiers.capacity,
            "PAGE_TOKENS": PAGE_TOKENS,
        }
        shape: dict[str, Constant] = {
            "KV_TYPE": self._memory.dtype,
            "NUM_KV_HEADS": self._config.num_kv_heads,
            "HEAD_DIM": self._config.head_dim,
            "SIZE": DEMOTE_SIZE,
        }
        grid = (self._config.num_kv_heads, DEMOTE_WORKGROUPS, 1)
        demote = Dispatch("kv/demote.wgsl", constants | shape, (hot, cold, self._tiers_binding), grid)
        lag: dict[str, Constant] = {"LAG": self.tiers.lag}
        advance = Dispatch("kv/advance_tiers.wgsl", lag, (STATE, self._tiers_binding), (1, 1, 1))
        before = (advance, demote) if layer == self.group.layers[0] else (demote,)
        return CacheLayout("tiered", (hot,), constants, (cold, self._tiers_binding), before_append=before)

    def missing(self, tokens: int, length: int) -> bool:
        return not self._buffers.by_binding or _takes_page(self.table, self.tiers, length)

    def ensure(self, tokens: int, length: int) -> None:
        if not self._pages.buffers.by_binding:
            # Kernels bind the pages before any token is in them.
            self._pages.grow(1)
        if not self._buffers.by_binding:
            sizes = {Binding("kv", f"{layer}.hot"): self._ring_bytes for layer in self.group.layers}
            sizes[self._tiers_binding] = (2 + pages_for(self._context)) * 4
            self._buffers.replace(sizes, keep_bytes=0)
        if _takes_page(self.table, self.tiers, length) and self.table.extend(
            self.tiers.after(length), self.tiers.cold, self._pages
        ):
            # Steps in flight read only entries that stay as they are. The words before are the GPU's own.
            entries = np.asarray(self.table.pages, np.uint32)
            self._memory.device.queue.write_buffer(self._buffers.by_binding[self._tiers_binding], 8, entries)

    def begin(self, length: int) -> None:
        self.tiers.cold = self.tiers.after(length)

    def truncate(self, length: int, present: int) -> int:
        # The GPU does the same where its next step begins below the boundary.
        self.tiers.cold = min(self.tiers.cold, length)
        self.table.truncate(self.tiers.cold)
        return length

    def fork(self, length: int) -> GpuTiered:
        other = GpuTiered(self.group, self._config, self._context, replace(self.tiers), self._pages, self._memory)
        other._buffers = self._buffers.copy(keep_bytes=self._memory.max_binding)
        other.table = self.table.fork(self.tiers.cold)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        pages, allocated = len(self.table.pages), bool(self._buffers.by_binding)
        return tiered_stats(self.group, self.tiers, self._token_bytes, length, pages, allocated, context)

    def cells(self, length: int) -> str:
        return tiered_cells(self.group, self.tiers, self.table, length, bool(self._buffers.by_binding))

    def close(self) -> None:
        self.tiers.cold = 0
        self.table.truncate(0)
        self._buffers.close()

    @property
    def _ring_bytes(self) -> int:
        """Bytes of one layer's hot ring."""
        return self.tiers.capacity * self._token_bytes[0]


def _gpu_token_bytes(group: LayerGroup, config: ModelConfig, memory: GpuMemory) -> tuple[int, int]:
    """Bytes of one token in one layer, hot and cold."""
    columns = row_format(group, config).columns
    cold_itemsize = 4 if COLD_BITS[group.layout] else memory.itemsize
    return 2 * memory.row_bytes(config), config.num_kv_heads * columns * cold_itemsize


def _takes_page(table: PageTable, tiers: Tiers, length: int) -> bool:
    """Whether a step behind `length` tokens demotes some to pages that the table lacks or shares."""
    boundary = tiers.after(length)
    return boundary > tiers.cold and table.needs(boundary, tiers.cold)
