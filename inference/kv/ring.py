"""The ring layout, for layers with a sliding window: old tokens are overwritten once no query can see them.

Position p lies in slot p mod capacity. A step of `chunk` rows overwrites before it reads, and its first
row still sees window - 1 earlier keys; tokens in flight may be taken back. Hence
capacity = window + chunk - 1 + tokens in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.errors import DoesNotFit
from inference.events import KvGroupStats
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory, LayerArrays
from inference.kv.layout import LayerGroup
from inference.kv.paged import GpuPages, gpu_kv_pages
from inference.models.config import ModelConfig


class RingSlots:
    """Which positions a ring holds."""

    def __init__(self, window: int, chunk: int, in_flight: int, context: int) -> None:
        self.window = window
        self.capacity = min(context, window + chunk - 1 + in_flight)
        # One past the highest position written since the ring was last empty: what lies `capacity` below is gone.
        self._written = 0

    def truncate(self, length: int, present: int) -> int:
        """`length` where a query at that position still finds every key it sees, else 0."""
        self._written = max(self._written, present)
        first_held = max(0, self._written - self.capacity)
        if max(0, length - self.window + 1) < first_held:
            length = 0
        if length == 0:
            self._written = 0
        return length

    def cells(self, length: int) -> str:
        """What each slot holds of a ring with `length` tokens: "k", "o" outside the window, or "f"."""
        first = max(0, max(self._written, length) - self.capacity)
        unseen = min(max(first, length - self.window + 1), length)
        by_position = "o" * (unseen - first) + "k" * (length - unseen)
        by_position += "f" * (self.capacity - len(by_position))
        # Position `first` lies in slot first mod capacity.
        turn = self.capacity - first % self.capacity
        return by_position[turn:] + by_position[:turn]

    def copy(self) -> RingSlots:
        """The same state, apart."""
        other = RingSlots(self.window, 0, 0, 0)
        other.capacity, other._written = self.capacity, self._written
        return other


def ring_stats(group: LayerGroup, row_bytes: int, length: int, capacity: int, allocated: bool) -> KvGroupStats:
    """Stats of a ring that takes `row_bytes` a token and layer for K and V together."""
    token_bytes = len(group.layers) * row_bytes
    held = min(length, capacity)
    return KvGroupStats(
        layout=group.layout,
        reason=group.reason,
        layers=group.layers,
        held_tokens=held,
        used_bytes=held * token_bytes,
        allocated_bytes=capacity * token_bytes if allocated else 0,
        capacity_bytes=capacity * token_bytes,
    )


class NumpyRing:
    """In host memory, f32, (K, capacity, E)."""

    def __init__(self, group: LayerGroup, config: ModelConfig, slots: RingSlots, memory: HostMemory) -> None:
        self.group = group
        self._config = config
        self._slots = slots
        self._memory = memory
        self._arrays = LayerArrays(group.layers, memory)

    def missing(self, tokens: int, length: int) -> bool:
        return not self._arrays.keys

    def ensure(self, tokens: int, length: int) -> None:
        self._arrays.resize((self._config.num_kv_heads, self._slots.capacity, self._config.head_dim), axis=1, keep=0)

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        at = np.arange(start, start + k.shape[1]) % self._slots.capacity
        self._arrays.keys[layer][:, at] = k
        self._arrays.values[layer][:, at] = v

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(first, end) % self._slots.capacity
        return self._arrays.keys[layer][:, at], self._arrays.values[layer][:, at]

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        return self._slots.truncate(length, present)

    def fork(self, length: int) -> NumpyRing:
        other = NumpyRing(self.group, self._config, self._slots.copy(), self._memory)
        other._arrays = self._arrays.copy()
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        row_bytes = 2 * self._config.kv_size * 4
        return ring_stats(self.group, row_bytes, length, self._slots.capacity, bool(self._arrays.keys))

    def cells(self, length: int) -> str:
        return self._slots.cells(length) if self._arrays.keys else ""

    def close(self) -> None:
        self._arrays.clear()


def gpu_rings(group: LayerGroup, config: ModelConfig, capacity: int, memory: GpuMemory) -> GpuPages:
    """The rings of all sequences, each a page of `capacity` tokens: (rings, capacity, K, E), two buffers a layer."""
    return gpu_kv_pages(group, config, memory, page_tokens=capacity, growth=1)


class GpuRing(InBuffers):
    """One sequence in one of `gpu_rings`. A buffer of its own holds the number of its ring."""

    def __init__(
        self, group: LayerGroup, config: ModelConfig, slots: RingSlots, rings: GpuPages, memory: GpuMemory
    ) -> None:
        self.group = group
        self._config = config
        self._slots = slots
        self._rings = rings
        self._memory = memory
        self._row_bytes = memory.row_bytes(config)
        self._ring: int | None = None
        self._number = BufferSet(memory)
        self._number_binding = Binding("kv", f"{group.layers[0]}.ring")

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return self._rings.buffers, self._number

    def layout(self, layer: int) -> CacheLayout:
        return self._layout(layer, self._number_binding)

    def shared_layout(self, layer: int) -> CacheLayout:
        return self._layout(layer, self.places_binding)

    @property
    def places_binding(self) -> Binding:
        return Binding("kv", f"{self.group.layers[0]}.rings")

    @property
    def max_places(self) -> int:
        return 1

    @property
    def places(self) -> Sequence[int]:
        return () if self._ring is None else (self._ring,)

    @property
    def shared(self) -> BufferSet:
        return self._rings.buffers

    def missing(self, tokens: int, length: int) -> bool:
        return self._ring is None

    def ensure(self, tokens: int, length: int) -> None:
        if self._ring is not None:
            return
        ring = self._rings.pool.allocate()
        try:
            self._rings.grow(ring + 1)
            self._number.replace({self._number_binding: 4}, keep_bytes=0)
        except DoesNotFit:
            self._rings.pool.release(ring)
            raise
        self._ring = ring
        number = np.array([ring], np.uint32)
        self._memory.device.queue.write_buffer(self._number.by_binding[self._number_binding], 0, number)

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        return self._slots.truncate(length, present)

    def fork(self, length: int) -> GpuRing:
        other = GpuRing(self.group, self._config, self._slots.copy(), self._rings, self._memory)
        if self._ring is not None:
            other.ensure(length, length)
            assert other._ring is not None
            try:
                self._rings.copy(self._ring, other._ring)
            except DoesNotFit:
                other.close()
                raise
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        allocated = self._ring is not None
        return ring_stats(self.group, 2 * self._row_bytes, length, self._slots.capacity, allocated)

    def cells(self, length: int) -> str:
        return self._slots.cells(length) if self._ring is not None else ""

    def close(self) -> None:
        if self._ring is not None:
            self._rings.pool.release(self._ring)
            self._ring = None
        self._number.close()

    def _layout(self, layer: int, numbers: Binding) -> CacheLayout:
        bindings = (Binding("kv", f"{layer}.k"), Binding("kv", f"{layer}.v"), numbers)
        return CacheLayout("ring", bindings, {"RING_CAPACITY": self._slots.capacity})
