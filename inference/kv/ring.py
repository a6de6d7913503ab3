"""The ring layout, for layers with a sliding window: old tokens are overwritten once no query can see them.

Position p lies in slot p mod capacity. A step of `chunk` rows overwrites before it reads, and its first
row still sees window - 1 earlier keys; tokens in flight may be taken back. Hence
capacity = window + chunk - 1 + tokens in flight.
"""

from __future__ import annotations

import numpy as np

from inference.events import KvGroupStats
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory, LayerArrays
from inference.kv.layout import LayerGroup
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


class GpuRing(InBuffers):
    """In GPU buffers of the cache's dtype, (capacity, K, E)."""

    def __init__(self, group: LayerGroup, config: ModelConfig, slots: RingSlots, memory: GpuMemory) -> None:
        self.group = group
        self._config = config
        self._slots = slots
        self._memory = memory
        self._row_bytes = memory.row_bytes(config)
        self._buffers = BufferSet(memory)

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return (self._buffers,)

    def layout(self, layer: int) -> CacheLayout:
        bindings = (Binding("kv", f"{layer}.k"), Binding("kv", f"{layer}.v"))
        return CacheLayout("ring", bindings, {"RING_CAPACITY": self._slots.capacity})

    def missing(self, tokens: int, length: int) -> bool:
        return not self._buffers.by_binding

    def ensure(self, tokens: int, length: int) -> None:
        size = self._slots.capacity * self._row_bytes
        bindings = [binding for layer in self.group.layers for binding in self.layout(layer).bindings]
        self._buffers.replace(dict.fromkeys(bindings, size), keep_bytes=0)

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        return self._slots.truncate(length, present)

    def fork(self, length: int) -> GpuRing:
        other = GpuRing(self.group, self._config, self._slots.copy(), self._memory)
        other._buffers = self._buffers.copy(keep_bytes=self._slots.capacity * self._row_bytes)
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        allocated = bool(self._buffers.by_binding)
        return ring_stats(self.group, 2 * self._row_bytes, length, self._slots.capacity, allocated)

    def cells(self, length: int) -> str:
        return self._slots.cells(length) if self._buffers.by_binding else ""

    def close(self) -> None:
        self._buffers.close()
