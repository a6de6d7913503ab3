"""The paged layout: fixed pages from a pool, a page table a sequence (PagedAttention, arXiv:2309.06180).

A page holds PAGE_TOKENS tokens of every layer of the group, under the same number in each layer's arrays.
Forks share pages; whoever is about to write a page that others hold takes a copy first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from inference.errors import DoesNotFit
from inference.events import KvGroupStats
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory, LayerArrays
from inference.kv.layout import GROWTH_STEP, LayerGroup
from inference.kv.page_pool import PAGE_TOKENS, PagePool, pages_for
from inference.models.config import ModelConfig

GROWTH_PAGES = GROWTH_STEP // PAGE_TOKENS


class PageMemory(Protocol):
    """What lies behind the pages of a pool."""

    def grow(self, pages: int) -> None:
        """Make room for the pages numbered below `pages`. Raises DoesNotFit and changes nothing."""

    def copy(self, old: int, new: int) -> None:
        """Copy a page in all layers. Raises DoesNotFit."""


class PageTable:
    """The pages of one sequence, in order of position."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []

    def extend(self, tokens: int, length: int, memory: PageMemory) -> bool:
        """Pages for `tokens` tokens, of which `length` are held; True where the table changed.

        A shared page that will be written is replaced by a copy. Raises DoesNotFit and takes nothing.
        """
        shared = self._shared_tail(length)
        wanted = max(0, pages_for(tokens) - len(self.pages)) + (shared is not None)
        if wanted == 0:
            return False
        self.pool.require(wanted)
        new = [self.pool.allocate() for _ in range(wanted)]
        try:
            memory.grow(max(new) + 1)
            if shared is not None:
                memory.copy(self.pages[shared], new[0])
        except DoesNotFit:
            for page in new:
                self.pool.release(page)
            raise
        if shared is not None:
            self.pool.release(self.pages[shared])
            self.pages[shared] = new.pop(0)
        self.pages += new
        return True

    def needs(self, tokens: int, length: int) -> bool:
        """Whether `extend` would take a page."""
        return pages_for(tokens) > len(self.pages) or self._shared_tail(length) is not None

    def places(self, tokens: np.ndarray) -> np.ndarray:
        """Where tokens of these numbers lie: page number * PAGE_TOKENS + place in the page."""
        return np.asarray(self.pages, np.int64)[tokens // PAGE_TOKENS] * PAGE_TOKENS + tokens % PAGE_TOKENS

    def truncate(self, length: int) -> None:
        """Give back the pages that hold nothing before position `length`."""
        keep = pages_for(length)
        for page in self.pages[keep:]:
            self.pool.release(page)
        del self.pages[keep:]

    def cells(self, tokens: int, letter: str) -> str:
        """`letter` for each of `tokens` tokens, "s" for those in pages that others hold too."""
        pages = ("s" if self.pool.holders(page) > 1 else letter for page in self.pages)
        return "".join(cell * PAGE_TOKENS for cell in pages)[:tokens]

    def free_tokens(self, tokens: int) -> int:
        """Room beyond `tokens` tokens in the pages held, and in pages that nobody holds any more."""
        return (len(self.pages) + self.pool.capacity - self.pool.held) * PAGE_TOKENS - tokens

    def fork(self, length: int) -> PageTable:
        """Another table that shares the pages of the `length` tokens held."""
        other = PageTable(self.pool)
        other.pages = self.pages[: pages_for(length)]
        for page in other.pages:
            self.pool.share(page)
        return other

    def _shared_tail(self, length: int) -> int | None:
        """Index of the partly filled page that the next token goes to, where others hold it too."""
        index = length // PAGE_TOKENS
        if index < len(self.pages) and self.pool.holders(self.pages[index]) > 1:
            return index
        return None


def paged_stats(group: LayerGroup, row_bytes: int, length: int, pages: int, context: int) -> KvGroupStats:
    """Stats of pages that take `row_bytes` a token and layer for K and V together; shared pages count for each."""
    token_bytes = len(group.layers) * row_bytes
    return KvGroupStats(
        layout=group.layout,
        reason=group.reason,
        layers=group.layers,
        held_tokens=length,
        used_bytes=length * token_bytes,
        allocated_bytes=pages * PAGE_TOKENS * token_bytes,
        capacity_bytes=pages_for(context) * PAGE_TOKENS * token_bytes,
    )


def paged_cells(table: PageTable, length: int) -> str:
    """The tokens held, then what is free."""
    return table.cells(length, "k") + "f" * table.free_tokens(length)


class NumpyPages:
    """The pages of all sequences in host memory, f32: (K, pages, PAGE_TOKENS, E) a layer, grown in steps."""

    def __init__(self, group: LayerGroup, config: ModelConfig, pool: PagePool, memory: HostMemory) -> None:
        self.pool = pool
        self._heads, self._head_dim = config.num_kv_heads, config.head_dim
        self._held = 0
        self.arrays = LayerArrays(group.layers, memory)

    def grow(self, pages: int) -> None:
        if pages > self._held:
            pages = -(-pages // GROWTH_PAGES) * GROWTH_PAGES
            self.arrays.resize((self._heads, pages, PAGE_TOKENS, self._head_dim), axis=1, keep=self._held)
            self._held = pages

    def copy(self, old: int, new: int) -> None:
        for arrays in (self.arrays.keys, self.arrays.values):
            for array in arrays.values():
                array[:, new] = array[:, old]


class NumpyPaged:
    """One sequence in the pages of NumpyPages."""

    def __init__(self, group: LayerGroup, config: ModelConfig, pages: NumpyPages) -> None:
        self.group = group
        self._config = config
        self._pages = pages
        self.table = PageTable(pages.pool)

    def missing(self, tokens: int, length: int) -> bool:
        return self.table.needs(tokens, length)

    def ensure(self, tokens: int, length: int) -> None:
        self.table.extend(tokens, length, self._pages)

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        keys, values = self._pages.arrays.keys[layer], self._pages.arrays.values[layer]
        end = start + k.shape[1]
        for index in range(start // PAGE_TOKENS, pages_for(end)):
            page, base = self.table.pages[index], index * PAGE_TOKENS
            first, last = max(start, base), min(end, base + PAGE_TOKENS)
            keys[:, page, first - base : last - base] = k[:, first - start : last - start]
            values[:, page, first - base : last - base] = v[:, first - start : last - start]

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        arrays = self._pages.arrays
        return self._gather(arrays.keys[layer], first, end), self._gather(arrays.values[layer], first, end)

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        self.table.truncate(length)
        return length

    def fork(self, length: int) -> NumpyPaged:
        other = NumpyPaged(self.group, self._config, self._pages)
        other.table = self.table.fork(length)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        return paged_stats(self.group, 2 * self._config.kv_size * 4, length, len(self.table.pages), context)

    def cells(self, length: int) -> str:
        return paged_cells(self.table, length)

    def close(self) -> None:
        self.table.truncate(0)

    def _gather(self, pages: np.ndarray, first: int, end: int) -> np.ndarray:
        start = first // PAGE_TOKENS
        table = self.table.pages[start : pages_for(end)]
        # Pages taken one after the other, as those of a single conversation are, are read where they lie.
        run = range(table[0], table[0] + len(table))
        used = pages[:, run.start : run.stop] if table == list(run) else pages[:, table]
        # (K, pages, PAGE_TOKENS, E) -> (K, T, E)
        by_head = used.reshape(used.shape[0], -1, used.shape[3])
        return by_head[:, first - start * PAGE_TOKENS : end - start * PAGE_TOKENS]


class GpuPages:
    """The pages of all sequences in GPU buffers of `token_bytes` a token, one for each binding.

    They grow by `growth` pages.
    """

    def __init__(
        self,
        bindings: Iterable[Binding],
        token_bytes: int,
        memory: GpuMemory,
        page_tokens: int = PAGE_TOKENS,
        growth: int = GROWTH_PAGES,
    ) -> None:
        self._memory = memory
        self._page_bytes = page_tokens * token_bytes
        self._growth = growth
        self.pool = PagePool(memory.max_binding // self._page_bytes, page_tokens)
        self.buffers = BufferSet(memory)
        self._bindings = tuple(bindings)
        self._held = 0

    def grow(self, pages: int) -> None:
        if pages <= self._held:
            return
        pages = min(-(-pages // self._growth) * self._growth, self.pool.max_pages)
        self.buffers.replace(dict.fromkeys(self._bindings, pages * self._page_bytes), self._held * self._page_bytes)
        self._held = pages

    def copy(self, old: int, new: int) -> None:
        """Behind the steps that are with the device."""
        size = self._page_bytes
        # WebGPU copies only between different buffers.
        between = self._memory.pool.create("scratch", size, "page copy")
        encoder = self._memory.device.create_command_encoder()
        for buffer in self.buffers.by_binding.values():
            encoder.copy_buffer_to_buffer(buffer, old * size, between, 0, size)
            encoder.copy_buffer_to_buffer(between, 0, buffer, new * size, size)
        self._memory.device.queue.submit([encoder.finish()])
        self._memory.pool.destroy(between)


def gpu_kv_pages(
    group: LayerGroup,
    config: ModelConfig,
    memory: GpuMemory,
    page_tokens: int = PAGE_TOKENS,
    growth: int = GROWTH_PAGES,
) -> GpuPages:
    """Pages of keys and of values in the cache's dtype, two buffers a layer: (pages, page_tokens, K, E)."""
    bindings = [Binding("kv", f"{layer}.{part}") for layer in group.layers for part in ("k", "v")]
    return GpuPages(bindings, memory.row_bytes(config), memory, page_tokens, growth)


class GpuPaged(InBuffers):
    """One sequence in the pages of GpuPages; its page table is a u32 buffer for the whole context."""

    def __init__(
        self, group: LayerGroup, config: ModelConfig, context: int, pages: GpuPages, memory: GpuMemory
    ) -> None:
        self.group = group
        self._config = config
        self._context = context
        self._pages = pages
        self._memory = memory
        self.table = PageTable(pages.pool)
        self._table_binding = Binding("kv", f"{group.layers[0]}.page_table")
        self._table_buffer = BufferSet(memory)

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return self._pages.buffers, self._table_buffer

    def layout(self, layer: int) -> CacheLayout:
        bindings = (Binding("kv", f"{layer}.k"), Binding("kv", f"{layer}.v"), self._table_binding)
        return CacheLayout("paged", bindings, {"PAGE_TOKENS": PAGE_TOKENS})

    def shared_layout(self, layer: int) -> CacheLayout:
        bindings = (Binding("kv", f"{layer}.k"), Binding("kv", f"{layer}.v"), self.places_binding)
        return CacheLayout("paged", bindings, {"PAGE_TOKENS": PAGE_TOKENS, "TABLE_PAGES": self.max_places})

    @property
    def places_binding(self) -> Binding:
        return Binding("kv", f"{self.group.layers[0]}.page_tables")

    @property
    def max_places(self) -> int:
        return pages_for(self._context)

    @property
    def places(self) -> Sequence[int]:
        return self.table.pages

    @property
    def shared(self) -> BufferSet:
        return self._pages.buffers

    def missing(self, tokens: int, length: int) -> bool:
        return self.table.needs(tokens, length)

    def ensure(self, tokens: int, length: int) -> None:
        if not self._table_buffer.by_binding:
            self._table_buffer.replace({self._table_binding: pages_for(self._context) * 4}, keep_bytes=0)
        if self.table.extend(tokens, length, self._pages):
            # Steps in flight read only entries that stay as they are.
            entries = np.asarray(self.table.pages, np.uint32)
            self._memory.device.queue.write_buffer(self._table_buffer.by_binding[self._table_binding], 0, entries)

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        self.table.truncate(length)
        return length

    def fork(self, length: int) -> GpuPaged:
        other = GpuPaged(self.group, self._config, self._context, self._pages, self._memory)
        other._table_buffer = self._table_buffer.copy(keep_bytes=pages_for(length) * 4)
        other.table = self.table.fork(length)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        row_bytes = 2 * self._memory.row_bytes(self._config)
        return paged_stats(self.group, row_bytes, length, len(self.table.pages), context)

    def cells(self, length: int) -> str:
        return paged_cells(self.table, length)

    def close(self) -> None:
        self.table.truncate(0)
        self._table_buffer.close()
