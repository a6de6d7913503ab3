"""The contiguous layout: one K and one V array a layer, position by position, grown in steps up to the context."""

from __future__ import annotations

import numpy as np

from inference.events import KvGroupStats
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.gpu_store import BufferSet, GpuMemory, InBuffers
from inference.kv.host_arrays import HostMemory, LayerArrays
from inference.kv.layout import LayerGroup, grown_capacity
from inference.models.config import ModelConfig


def contiguous_stats(group: LayerGroup, row_bytes: int, length: int, capacity: int, context: int) -> KvGroupStats:
    """Stats of a layout that takes `row_bytes` a token and layer for K and V together."""
    token_bytes = len(group.layers) * row_bytes
    return KvGroupStats(
        layout=group.layout,
        reason=group.reason,
        layers=group.layers,
        held_tokens=length,
        used_bytes=length * token_bytes,
        allocated_bytes=capacity * token_bytes,
        capacity_bytes=context * token_bytes,
    )


class NumpyContiguous:
    """In host memory, f32, (K, capacity, E): heads first, so that each head's keys are one BLAS operand."""

    def __init__(self, group: LayerGroup, config: ModelConfig, context: int, memory: HostMemory) -> None:
        self.group = group
        self._config = config
        self._context = context
        self._memory = memory
        self._capacity = 0
        self._arrays = LayerArrays(group.layers, memory)

    def missing(self, tokens: int, length: int) -> bool:
        return tokens > self._capacity

    def ensure(self, tokens: int, length: int) -> None:
        capacity = grown_capacity(tokens, self._context)
        self._arrays.resize((self._config.num_kv_heads, capacity, self._config.head_dim), axis=1, keep=length)
        self._capacity = capacity

    def append(self, layer: int, start: int, k: np.ndarray, v: np.ndarray) -> None:
        self._arrays.keys[layer][:, start : start + k.shape[1]] = k
        self._arrays.values[layer][:, start : start + k.shape[1]] = v

    def view(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        return self._arrays.keys[layer][:, first:end], self._arrays.values[layer][:, first:end]

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        return length

    def fork(self, length: int) -> NumpyContiguous:
        other = NumpyContiguous(self.group, self._config, self._context, self._memory)
        other._capacity, other._arrays = self._capacity, self._arrays.copy()
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        return contiguous_stats(self.group, 2 * self._config.kv_size * 4, length, self._capacity, context)

    def cells(self, length: int) -> str:
        return "k" * length + "f" * (self._capacity - length)

    def close(self) -> None:
        self._arrays.clear()
        self._capacity = 0


class GpuContiguous(InBuffers):
    """In GPU buffers of the cache's dtype, (capacity, K, E)."""

    def __init__(self, group: LayerGroup, config: ModelConfig, context: int, memory: GpuMemory) -> None:
        self.group = group
        self._config = config
        self._context = context
        self._memory = memory
        self._capacity = 0
        self._row_bytes = memory.row_bytes(config)
        self._buffers = BufferSet(memory)

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        return (self._buffers,)

    def layout(self, layer: int) -> CacheLayout:
        """How kernels find the cache."""
        return CacheLayout("contiguous", (Binding("kv", f"{layer}.k"), Binding("kv", f"{layer}.v")))

    def missing(self, tokens: int, length: int) -> bool:
        return tokens > self._capacity

    def ensure(self, tokens: int, length: int) -> None:
        capacity = grown_capacity(tokens, self._context)
        sizes = {
            Binding("kv", f"{layer}.{part}"): capacity * self._row_bytes
            for layer in self.group.layers
            for part in ("k", "v")
        }
        self._buffers.replace(sizes, keep_bytes=length * self._row_bytes)
        self._capacity = capacity

    def begin(self, length: int) -> None:
        pass

    def truncate(self, length: int, present: int) -> int:
        return length

    def fork(self, length: int) -> GpuContiguous:
        other = GpuContiguous(self.group, self._config, self._context, self._memory)
        other._buffers = self._buffers.copy(keep_bytes=length * self._row_bytes)
        other._capacity = self._capacity
        return other

    def stats(self, length: int, context: int) -> KvGroupStats:
        return contiguous_stats(self.group, 2 * self._row_bytes, length, self._capacity, context)

    def cells(self, length: int) -> str:
        return "k" * length + "f" * (self._capacity - length)

    def close(self) -> None:
        self._buffers.close()
        self._capacity = 0
