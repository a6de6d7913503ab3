"""What the GPU stores share: a named set of buffers that can be replaced by larger ones, or copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from inference.errors import DoesNotFit
from inference.kernels.dispatch import Binding, CacheLayout
from inference.kv.layout import Store
from inference.models.config import ModelConfig
from inference.plan.ops import ITEMSIZE, DType

if TYPE_CHECKING:
    from inference.gpu.buffers import BufferPool


@dataclass(frozen=True)
class GpuMemory:
    """Where GPU stores live: the device, its buffers, the dtype of keys and values, and how steps overlap.

    `chunk` is the most tokens of one step, `in_flight` the most tokens computed beyond what the host has seen.
    """

    device: Any
    pool: BufferPool
    dtype: DType
    chunk: int
    in_flight: int
    max_binding: int

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    def row_bytes(self, config: ModelConfig) -> int:
        """Bytes of the K (or V) of one token in one layer."""
        return config.kv_size * self.itemsize


class GpuStore(Store, Protocol):
    """A store whose keys and values lie in GPU buffers."""

    @property
    def version(self) -> int:
        """Rises whenever a buffer is replaced, so that what was bound to it is made anew."""

    def buffers(self) -> Mapping[Binding, Any]:
        """The buffers behind the bindings of `layout`."""

    def layout(self, layer: int) -> CacheLayout:
        """How kernels find the layer's keys and values. Needs no memory to be held yet."""


@runtime_checkable
class SharingStore(GpuStore, Protocol):
    """A store whose keys and values lie in buffers that those of other sequences share, in numbered places.

    So one dispatch can serve several sequences: it finds the places of each in a row of a table.
    """

    @property
    def shared(self) -> BufferSet:
        """The buffers of all sequences."""

    @property
    def places(self) -> Sequence[int]:
        """The numbers of this sequence's places, in order of position: its row of the table."""

    @property
    def max_places(self) -> int:
        """Entries of a row of the table."""

    @property
    def places_binding(self) -> Binding:
        """That of the table, u32 (sequences, max_places)."""

    def shared_layout(self, layer: int) -> CacheLayout:
        """How kernels find the keys and values of a layer of several sequences, by that table."""


class BufferSet:
    """Buffers by binding, and how often they were replaced."""

    def __init__(self, memory: GpuMemory) -> None:
        self._memory = memory
        self.by_binding: dict[Binding, Any] = {}
        self.version = 0

    def replace(self, sizes: Mapping[Binding, int], keep_bytes: int) -> None:
        """New buffers of `sizes` bytes in place of the present ones, with their first `keep_bytes` bytes.

        The copy is queued behind the steps that are with the device. Raises DoesNotFit and changes nothing.
        """
        old, self.by_binding = self.by_binding, self._filled(sizes, self.by_binding, keep_bytes)
        self.version += 1
        for buffer in old.values():
            self._memory.pool.destroy(buffer)

    def copy(self, keep_bytes: int) -> BufferSet:
        """Other buffers of the same sizes, each with the same first `keep_bytes` bytes at most. Raises DoesNotFit."""
        other = BufferSet(self._memory)
        sizes = {binding: buffer.size for binding, buffer in self.by_binding.items()}
        other.by_binding = self._filled(sizes, self.by_binding, keep_bytes)
        return other

    def close(self) -> None:
        """Free all buffers."""
        for buffer in self.by_binding.values():
            self._memory.pool.destroy(buffer)
        self.by_binding = {}
        self.version += 1

    def _filled(self, sizes: Mapping[Binding, int], old: Mapping[Binding, Any], keep_bytes: int) -> dict[Binding, Any]:
        new: dict[Binding, Any] = {}
        try:
            for binding, size in sizes.items():
                new[binding] = self._memory.pool.create("kv", size, f"kv cache {binding.name}")
        except DoesNotFit:
            for buffer in new.values():
                self._memory.pool.destroy(buffer)
            raise
        if keep_bytes and old:
            encoder = self._memory.device.create_command_encoder()
            for binding, buffer in new.items():
                # Copies are in whole words; buffers are padded to them.
                size = min(-(-keep_bytes // 4) * 4, old[binding].size)
                encoder.copy_buffer_to_buffer(old[binding], 0, buffer, 0, size)
            self._memory.device.queue.submit([encoder.finish()])
        return new


class InBuffers:
    """The part of a GpuStore that tells its buffers: those of the sets that it keeps them in."""

    def _buffer_sets(self) -> tuple[BufferSet, ...]:
        raise NotImplementedError

    @property
    def version(self) -> int:
        return sum(each.version for each in self._buffer_sets())

    def buffers(self) -> Mapping[Binding, Any]:
        return {binding: buffer for each in self._buffer_sets() for binding, buffer in each.by_binding.items()}
