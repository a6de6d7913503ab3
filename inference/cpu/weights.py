"""The weights of a model as NumPy computes with them: float32, each once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np

from inference.formats.planar import PlanarTensor
from inference.models.config import StoredWeight
from inference.plan.ops import Matmul, Plan, WeightRef
from inference.weights import WeightStore

Key = tuple[StoredWeight, ...]

BLOCK_BYTES = 64 << 20
"""Memory for weights is taken in blocks: NumPy asks for huge pages where an array has 4 MiB or more."""
FEW_ROWS = 1024
"""So few rows that are twice as long as they are many are multiplied faster row by row."""
ROWS_AT_ONCE = 256
"""Rows that are dequantised and turned together, while they are in the processor's cache."""


class HostWeights:
    """With `by_columns`, matrices that a matmul multiplies by are stored column by column, but for few long rows.

    Belongs to one thread.
    """

    def __init__(self, store: WeightStore, by_columns: bool) -> None:
        self._store = store
        self._by_columns = by_columns
        self._arrays: dict[Key, np.ndarray] = {}
        self._block = np.empty(0, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights loaded so far."""
        return sum(array.nbytes for array in self._arrays.values())

    def load(self, plan: Plan, threads: int = 1, progress: Callable[[int, int], None] | None = None) -> None:
        """Load what is missing of a plan's weights that are in the file; `progress` hears (weights done, in all)."""
        refs = [ref for op in plan.ops for ref in op.weights if self._in_file(ref)]
        products = {
            self._store.storage(op.weights[0])
            for op in plan.ops
            if self._by_columns and isinstance(op.attributes, Matmul) and self._in_file(op.weights[0])
        }
        missing = {key: ref for ref in refs if (key := self._store.storage(ref)) not in self._arrays}
        rooms = {key: self._room_for(ref) for key, ref in missing.items() if key in products}

        def read(key: Key) -> np.ndarray:
            tensor = self._store.load(missing[key])
            return _dequantize_into(rooms[key], tensor) if key in rooms else tensor.dequantize()

        with ThreadPoolExecutor(threads) as pool:
            for done, (key, array) in enumerate(zip(missing, pool.map(read, missing), strict=True)):
                self._arrays[key] = array
                if progress is not None:
                    progress(done + 1, len(missing))

    def __getitem__(self, ref: WeightRef) -> np.ndarray:
        """float32 (rows, columns). An embedding and a head that are tied are one array."""
        return self._arrays[self._store.storage(ref)]

    def clear(self) -> None:
        """Drop all weights."""
        self._arrays.clear()
        self._block = np.empty(0, np.float32)

    def _in_file(self, ref: WeightRef) -> bool:
        return ref.sources[0] in self._store.formats

    def _room_for(self, ref: WeightRef) -> np.ndarray:
        if ref.rows <= FEW_ROWS and ref.columns >= 2 * ref.rows:
            return self._room(ref.rows, ref.columns)
        return self._room(ref.columns, ref.rows).T

    def _room(self, *shape: int) -> np.ndarray:
        """Memory that is not yet written; what is left of a block is never touched, and so takes none."""
        size = prod(shape)
        if size > self._block.size:
            self._block = np.empty(max(size, BLOCK_BYTES // 4), np.float32)
        room, self._block = self._block[:size], self._block[size:]
        return room.reshape(shape)


def _dequantize_into(room: np.ndarray, tensor: PlanarTensor) -> np.ndarray:
    for first in range(0, tensor.rows, ROWS_AT_ONCE):
        rows = slice(first, min(first + ROWS_AT_ONCE, tensor.rows))
        room[rows] = tensor.slice_rows(rows.start, rows.stop).dequantize()
    return room
