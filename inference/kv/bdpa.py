"""The bdpa layout, basis-decomposed paged attention: a token id's keys and values are stored whole once a sequence.

The first occurrence of a token id is a basis row in f16; each later one is stored as its difference from that row,
8-bit integers with an f16 scale for the keys and one for the values of each KV head. Keys are stored before the rotary
embedding, which would make those of one id at two positions unlike; attention rotates what it rebuilds.

Rows and differences lie in pages of two pools, shared by forks like those of the paged layout. Which row and which
slot a token has is worked out twice, alike: by the GPU, since a sampled token is in the cache before the host knows
its id, and by BasisIndex on the host, for the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.cpu.ops import rotate
from inference.errors import DoesNotFit
from inference.events import KvGroupStats
from inference.kernels.dispatch import STATE, Binding, CacheLayout, Constant, Dispatch
from inference.kv.bdpa_index import NO_SLOT, BasisIndex
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory
from inference.kv.layout import LayerGroup
from inference.kv.page_arrays import PageArrays
from inference.kv.page_pool import PAGE_TOKENS, PagePool, pages_for
from inference.kv.paged import GpuPages, PageMemory, PageTable
from inference.kv.quantize import MAX_F16, RowFormat
from inference.models.config import ModelConfig
from inference.rope import RopeTables, inverse_table

ENTRY_BYTES = 8
"""Of the index, a token: basis row and difference slot."""

INDEX_SIZE = 64


def basis_bytes(config: ModelConfig) -> int:
    """Bytes of a basis row in one layer."""
    return 2 * config.kv_size * 2


def difference_bytes(config: ModelConfig) -> int:
    """Bytes of a difference in one layer."""
    return config.num_kv_heads * RowFormat(8, config.head_dim).columns * 4


class SequencePages:
    """The index of one sequence and the pages that hold its basis rows and its differences."""

    def __init__(self, basis: PageTable, differences: PageTable) -> None:
        self.index = BasisIndex()
        self.basis = basis
        self.differences = differences

    def needs(self, tokens: int, length: int) -> bool:
        """Whether `extend` would take a page."""
        (rows, slots), (held_rows, held_slots) = self.index.counts(tokens), self.index.counts(length)
        return self.basis.needs(rows, held_rows) or self.differences.needs(slots, held_slots)

    def extend(self, tokens: int, length: int, basis: PageMemory, differences: PageMemory) -> bool:
        """Pages for `tokens` tokens of which `length` are held; True where a page was taken.

        Tokens whose ids are not known may take a row or a slot: there is room for both.
        Raises DoesNotFit and takes nothing.
        """
        (rows, slots), (held_rows, held_slots) = self.index.counts(tokens), self.index.counts(length)
        before = len(self.basis.pages)
        changed = self.basis.extend(rows, held_rows, basis)
        try:
            return self.differences.extend(slots, held_slots, differences) or changed
        except DoesNotFit:
            self.basis.truncate(before * PAGE_TOKENS)
            raise

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        self.index.truncate(length)
        rows, slots = self.index.counts(length)
        self.basis.truncate(rows)
        self.differences.truncate(slots)

    def cells(self, length: int) -> str:
        """Basis rows and differences by position, then what is free. A token whose id is not known yet is left out."""
        basis, differences = (
            [table.pool.holders(page) > 1 for page in table.pages] for table in (self.basis, self.differences)
        )
        cells = "".join(
            ("s" if basis[row // PAGE_TOKENS] else "b")
            if slot == NO_SLOT
            else ("s" if differences[slot // PAGE_TOKENS] else "d")
            for row, slot in self.index.pairs(length)
        )
        rows, slots = self.index.counts(length)
        return cells + "f" * (self.basis.free_tokens(rows) + self.differences.free_tokens(slots))

    def fork(self, length: int) -> SequencePages:
        """The first `length` tokens in shared pages. Raises LayoutUnavailable where an id is not known."""
        self.index.require(length)
        rows, slots = self.index.counts(length)
        other = SequencePages(self.basis.fork(rows), self.differences.fork(slots))
        other.index = self.index.copy()
        other.index.truncate(length)
        return other

    def stats(self, group: LayerGroup, config: ModelConfig, length: int, context: int, fixed: int) -> KvGroupStats:
        """Stats by what is known of the tokens; one whose id is not known yet counts as a row and as a difference.

        `fixed` are the bytes of the index and what belongs to it; shared pages count for each holder.
        """
        row, difference = (len(group.layers) * size for size in (basis_bytes(config), difference_bytes(config)))
        rows, slots = self.index.counts(length)
        most_rows = min(context, config.vocab_size)
        return KvGroupStats(
            layout=group.layout,
            reason=group.reason,
            layers=group.layers,
            held_tokens=length,
            used_bytes=rows * row + slots * difference + length * ENTRY_BYTES,
            allocated_bytes=PAGE_TOKENS * (len(self.basis.pages) * row + len(self.differences.pages) * difference)
            + fixed,
            # The most that can come: every id once, then repeats.
            capacity_bytes=most_rows * row + (context - most_rows) * difference + context * ENTRY_BYTES,
        )


class NumpyBdpaPages:
    """The pages of all sequences in host memory. A page of basis rows: (PAGE_TOKENS, K and V, K, E) float16."""

    def __init__(self, group: LayerGroup, config: ModelConfig, max_pages: int, memory: HostMemory) -> None:
        self.format = RowFormat(8, config.head_dim)
        heads = config.num_kv_heads
        self.basis = PageArrays(group.layers, (2, heads, config.head_dim), np.float16, memory)
        self.differences = PageArrays(group.layers, (heads, self.format.columns), np.uint32, memory)
        self.basis_pool = PagePool(max_pages)
        self.difference_pool = PagePool(max_pages)
        self.ropes = RopeTables()


class NumpyBdpa:
    """One sequence in the pages of NumpyBdpaPages."""

    def __init__(self, group: LayerGroup, config: ModelConfig, pages: NumpyBdpaPages) -> None:
        self.group = group
        self._config = config
        self._pages = pages
        self._held = SequencePages(PageTable(pages.basis_pool), PageTable(pages.difference_pool))

    def note(self, position: int, ids: Sequence[int]) -> None:
        self._held.index.note(position, ids)

    def missing(self, tokens: int, length: int) -> bool:
        return self._held.needs(tokens, length)

    def ensure(self, tokens: int, length: int) -> None:
        self._held.extend(tokens, length, self._pages.basis, self._pages.differences)

    def begin(self, length: int) -> None:
        pass

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        end = start + k.shape[1]
        self._held.index.require(end)
        rope = self._config.layers[layer].rope
        back = inverse_table(self._pages.ropes.rows(rope, start, end))
        # Keys come rotated, as every layout takes them.
        unrotated = self._rotated(k, back, rope.interleaved)
        both = np.stack((unrotated, v)).transpose(2, 0, 1, 3)  # (2, K, T, E) -> (T, 2, K, E)
        rows, slots = self._held.index.entries(start, end).T
        new = slots == NO_SLOT
        basis = self._pages.basis.tokens(layer)
        basis[self._held.basis.places(rows[new])] = np.clip(both[new], -MAX_F16, MAX_F16)
        known = ~new
        difference = both[known] - basis[self._held.basis.places(rows[known])].astype(np.float32)
        encoded = self._pages.format.encode(difference[:, 0], difference[:, 1])
        self._pages.differences.tokens(layer)[self._held.differences.places(slots[known])] = encoded

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        rows, slots = self._held.index.entries(first, end).T
        both = self._pages.basis.tokens(layer)[self._held.basis.places(rows)].astype(np.float32)  # (T, 2, K, E)
        known = slots != NO_SLOT
        encoded = self._pages.differences.tokens(layer)[self._held.differences.places(slots[known])]
        both[known] += np.stack(self._pages.format.decode(encoded), axis=1)
        k, v = both.transpose(1, 2, 0, 3)  # 2 of (K, T, E)
        rope = self._config.layers[layer].rope
        return self._rotated(k, self._pages.ropes.rows(rope, first, end), rope.interleaved), v

    def truncate(self, length: int, present: int) -> int:
        self._held.truncate(length)
        return length

    def fork(self, length: int) -> NumpyBdpa:
        other = NumpyBdpa(self.group, self._config, self._pages)
        other._held = self._held.fork(length)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        return self._held.stats(self.group, self._config, length, context, length * ENTRY_BYTES)

    def cells(self, length: int) -> str:
        return self._held.cells(length)

    def close(self) -> None:
        self._held.truncate(0)

    def _rotated(self, k: np.ndarray, table: np.ndarray, interleaved: bool) -> np.ndarray:
        """k (K, T, E) turned by `table` (T, rotary_dim / 2, 2)."""
        by_token = k.transpose(1, 0, 2)
        turned = rotate(by_token.reshape(k.shape[1], -1), table, self._config.head_dim, interleaved)
        return turned.reshape(by_token.shape).transpose(1, 0, 2)


class GpuBdpaPages:
    """The pages of all sequences in GPU buffers; bdpa.wgsl says what lies in them."""

    def __init__(self, group: LayerGroup, config: ModelConfig, memory: GpuMemory) -> None:
        def pages(part: str, token_bytes: int) -> GpuPages:
            return GpuPages([Binding("kv", f"{layer}.{part}") for layer in group.layers], token_bytes, memory)

        self.basis = pages("basis", basis_bytes(config))
        self.differences = pages("differences", difference_bytes(config))


class GpuBdpa(InBuffers):
    """One sequence in the pages of GpuBdpaPages. One index, for the whole context, serves all layers."""

    def __init__(
        self, group: LayerGroup, config: ModelConfig, context: int, pages: GpuBdpaPages, memory: GpuMemory
    ) -> None:
        self.group = group
        self._config = config
        self._context = context
        self._pages = pages
        self._memory = memory
        self._held = SequencePages(PageTable(pages.basis.pool), PageTable(pages.differences.pool))
        self._entries = Binding("kv", f"{group.layers[0]}.entries")
        self._known = Binding("kv", f"{group.layers[0]}.known")
        self._index = BufferSet(memory)
        self._index_sizes = {
            self._entries: (pages_for(context) + context) * ENTRY_BYTES,
            self._known: (context + config.vocab_size) * 4,
        }

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return self._pages.basis.buffers, self._pages.differences.buffers, self._index

    def layout(self, layer: int) -> CacheLayout:
        rope = self._config.layers[layer].rope
        constants: dict[str, Constant] = {
            "PAGE_TOKENS": PAGE_TOKENS,
            "INDEX_AT": pages_for(self._context),
            "HALF": rope.rotary_dim // 2,
            "INTERLEAVED": rope.interleaved,
        }
        bindings = (Binding("kv", f"{layer}.basis"), Binding("kv", f"{layer}.differences"), self._entries)
        return CacheLayout(
            "bdpa",
            bindings,
            constants,
            read_bindings=(Binding("rope", str(layer)),),
            append="kv/append_bdpa.wgsl",
            before_append=(self._index_step(),) if layer == self.group.layers[0] else (),
        )

    def note(self, position: int, ids: Sequence[int]) -> None:
        self._held.index.note(position, ids)

    def missing(self, tokens: int, length: int) -> bool:
        return self._held.needs(tokens, length)

    def ensure(self, tokens: int, length: int) -> None:
        if not self._index.by_binding:
            self._index.replace(self._index_sizes, keep_bytes=0)
        # Kernels bind both, also while no token id has come twice.
        self._pages.differences.grow(1)
        if self._held.extend(tokens, length, self._pages.basis, self._pages.differences):
            # Steps in flight read only pages that stay as they are.
            tables = (self._held.basis.pages, self._held.differences.pages)
            entries = np.zeros((max(map(len, tables)), 2), np.uint32)
            for column, pages in enumerate(tables):
                entries[: len(pages), column] = pages
            self._memory.device.queue.write_buffer(self._index.by_binding[self._entries], 0, entries)

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        self._held.truncate(length)
        return length

    def fork(self, length: int) -> GpuBdpa:
        other = GpuBdpa(self.group, self._config, self._context, self._pages, self._memory)
        self._held.index.require(length)
        other._index = self._index.copy(keep_bytes=max(self._index_sizes.values()))
        other._held = self._held.fork(length)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        fixed = sum(self._index_sizes.values()) if self._index.by_binding else 0
        return self._held.stats(self.group, self._config, length, context, fixed)

    def cells(self, length: int) -> str:
        return self._held.cells(length)

    def close(self) -> None:
        self._held.truncate(0)
        self._index.close()

    def _index_step(self) -> Dispatch:
        """Finds the entries of a step's tokens."""
        constants: dict[str, Constant] = {
            "SIZE": INDEX_SIZE,
            "CHUNK": self._memory.chunk,
            "CONTEXT": self._context,
            "INDEX_AT": pages_for(self._context),
        }
        bindings = (Binding("tokens"), STATE, self._entries, self._known)
        return Dispatch("kv/bdpa_index.wgsl", constants, bindings, (1, 1, 1))
