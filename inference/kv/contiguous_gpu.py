"""The contiguous layout on the GPU: one K and one V buffer a layer, (capacity, K, E), grown in steps."""

from __future__ import annotations

from typing import Any

from inference.errors import ContextFull, DoesNotFit
from inference.events import KvStats
from inference.gpu.buffers import BufferPool
from inference.kernels.dispatch import Binding
from inference.kv.layout import grown_capacity, kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.plan.ops import DType

ITEMSIZE = {"f32": 4, "f16": 2}


class GpuContiguousCache:
    """Keys and values in GPU buffers of `dtype`.

    `programs` holds what the executor built for these very buffers; growing replaces the buffers and
    empties it.
    """

    def __init__(self, config: ModelConfig, context: int, dtype: DType, device: Any, pool: BufferPool) -> None:
        self.config = config
        self.context = context
        self.dtype = dtype
        self.length = 0
        self.capacity = 0
        self.buffers: dict[Binding, Any] = {}
        self.programs: dict[Any, Any] = {}
        self._device = device
        self._pool = pool

    def ensure(self, tokens: int) -> None:
        if tokens > self.context:
            raise ContextFull(f"{tokens} tokens exceed the context of {self.context}")
        if tokens <= self.capacity:
            return
        self._replace_buffers(grown_capacity(tokens, self.context), self.length)

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def fork(self) -> GpuContiguousCache:
        other = GpuContiguousCache(self.config, self.context, self.dtype, self._device, self._pool)
        other.capacity = self.capacity
        other.buffers = self.buffers
        other._replace_buffers(self.capacity, self.length, keep_old=True)
        other.length = self.length
        return other

    def stats(self) -> KvStats:
        per_token = kv_bytes_per_token(self.config, ITEMSIZE[self.dtype])
        return KvStats(
            layout="contiguous",
            tokens=self.length,
            capacity_tokens=self.capacity,
            context=self.context,
            used_bytes=self.length * per_token,
            capacity_bytes=self.capacity * per_token,
        )

    def close(self) -> None:
        for buffer in self.buffers.values():
            self._pool.destroy(buffer)
        self.buffers, self.programs = {}, {}
        self.capacity = self.length = 0

    def _replace_buffers(self, capacity: int, tokens: int, keep_old: bool = False) -> None:
        """New buffers with the first `tokens` tokens copied. The copy is queued behind the steps already submitted."""
        row = self.config.kv_size * ITEMSIZE[self.dtype]
        old, new = self.buffers, self._create_buffers(capacity * row)
        # Copies are in whole words; the buffers are padded to them.
        size = -(-tokens * row // 4) * 4
        if size:
            encoder = self._device.create_command_encoder()
            for binding, buffer in new.items():
                encoder.copy_buffer_to_buffer(old[binding], 0, buffer, 0, size)
            self._device.queue.submit([encoder.finish()])
        if not keep_old:
            for buffer in old.values():
                self._pool.destroy(buffer)
        self.buffers, self.programs = new, {}
        self.capacity = capacity

    def _create_buffers(self, size: int) -> dict[Binding, Any]:
        """K and V buffers of `size` bytes for every layer, or none at all. Raises DoesNotFit."""
        buffers: dict[Binding, Any] = {}
        try:
            for layer in range(self.config.num_layers):
                for part in ("k", "v"):
                    binding = Binding("kv", f"{layer}.{part}")
                    buffers[binding] = self._pool.create("kv", size, f"kv cache {binding.name}")
        except DoesNotFit:
            for buffer in buffers.values():
                self._pool.destroy(buffer)
            raise
        return buffers
