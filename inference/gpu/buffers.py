"""GPU buffers with accounting by purpose, and uploads in bounded pieces."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import wgpu

from inference.errors import DoesNotFit

Purpose = Literal["weights", "kv", "scratch", "staging"]

UPLOAD_PIECE = 32 * 1024 * 1024
"""write_buffer's staging memory is freed only when a submission is polled, so uploads go in pieces of this size."""

_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC


class BufferPool:
    """Creates and destroys buffers of one device and knows how many bytes each purpose holds."""

    def __init__(self, device: Any, max_buffer: int, memory_limit: int | None = None) -> None:
        self._device = device
        self._max_buffer = max_buffer
        self._memory_limit = memory_limit
        self._held: dict[int, tuple[Any, Purpose]] = {}
        self._pending_upload = 0
        self._marker = device.create_buffer(size=16, usage=_USAGE, label="marker")
        self.bytes: dict[Purpose, int] = {"weights": 0, "kv": 0, "scratch": 0, "staging": 0}
        self.peak = 0

    def create(self, purpose: Purpose, size: int, label: str) -> Any:
        """A storage buffer of at least `size` bytes (whole words, at least 16). Raises DoesNotFit."""
        size = max(16, -(-size // 4) * 4)
        return self._allocate(purpose, size, _USAGE, label)

    def create_readback(self, size: int, label: str) -> Any:
        """A buffer that results are copied to and mapped from."""
        return self._allocate("staging", size, wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ, label)

    def upload(self, buffer: Any, data: np.ndarray, offset: int = 0) -> None:
        """Write `data` (contiguous) at `offset` bytes; waits whenever UPLOAD_PIECE bytes are under way."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, UPLOAD_PIECE):
            piece = flat[start : start + UPLOAD_PIECE]
            self._device.queue.write_buffer(buffer, offset + start, piece)
            self._pending_upload += piece.size
            if self._pending_upload >= UPLOAD_PIECE:
                self.flush()

    def flush(self) -> None:
        """Hand all pending writes to the device and wait until it has done everything submitted so far.

        wgpu-py 0.32 cannot call on_submitted_work_done (its callback has another signature than the library's),
        so this reads a word back.
        """
        self._device.queue.read_buffer(self._marker, 0, 4)
        self._pending_upload = 0

    def destroy(self, buffer: Any) -> None:
        """Free a buffer made here."""
        held, purpose = self._held.pop(id(buffer))
        self.bytes[purpose] -= held.size
        held.destroy()

    def destroy_all(self) -> None:
        """Free everything."""
        for buffer, _ in list(self._held.values()):
            self.destroy(buffer)

    def _allocate(self, purpose: Purpose, size: int, usage: int, label: str) -> Any:
        if size > self._max_buffer:
            raise DoesNotFit(f"{label} needs one buffer of {size:,} bytes; the device allows {self._max_buffer:,}")
        held = sum(self.bytes.values())
        if self._memory_limit is not None and held + size > self._memory_limit:
            raise DoesNotFit(
                f"{label} needs {size:,} bytes more, {held + size:,} in all; the limit is {self._memory_limit:,}; "
                "choose a smaller model or a smaller --context"
            )
        try:
            buffer = self._device.create_buffer(size=size, usage=usage, label=label)
        except wgpu.GPUError as error:
            raise DoesNotFit(
                f"the device refused {size:,} bytes for {label} ({held:,} bytes are in use); "
                "choose a smaller model or a smaller --context, or use --device cpu"
            ) from error
        self._held[id(buffer)] = (buffer, purpose)
        self.bytes[purpose] += size
        self.peak = max(self.peak, held + size)
        return buffer
