"""What the NumPy stores share: arrays of every layer, accounted for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from weakref import WeakSet

import numpy as np


class HeldArrays(Protocol):
    """Arrays that HostMemory counts."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""

    def clear(self) -> None:
        """Drop the arrays."""


class HostMemory:
    """The arrays of all stores of one executor."""

    def __init__(self) -> None:
        self._held: WeakSet[HeldArrays] = WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return sum(arrays.nbytes for arrays in self._held)

    def register(self, arrays: HeldArrays) -> None:
        """Count these arrays from now on, for as long as they live."""
        self._held.add(arrays)

    def close(self) -> None:
        """Drop all arrays."""
        for arrays in list(self._held):
            arrays.clear()


class LayerArrays:
    """Keys and values, float32, one array of each a layer."""

    def __init__(self, layers: Iterable[int], memory: HostMemory) -> None:
        self._layers = tuple(layers)
        self._memory = memory
        self.keys: dict[int, np.ndarray] = {}
        self.values: dict[int, np.ndarray] = {}
        memory.register(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for arrays in (self.keys, self.values) for array in arrays.values())

    def resize(self, shape: tuple[int, ...], axis: int, keep: int) -> None:
        """Zeroed arrays of `shape` in place of the present ones, with their first `keep` entries along `axis`."""
        kept = (slice(None),) * axis + (slice(0, keep),)
        for arrays in (self.keys, self.values):
            for layer in self._layers:
                new = np.zeros(shape, np.float32)
                if layer in arrays:
                    new[kept] = arrays[layer][kept]
                arrays[layer] = new

    def copy(self) -> LayerArrays:
        """The same content, apart."""
        other = LayerArrays(self._layers, self._memory)
        other.keys = {layer: array.copy() for layer, array in self.keys.items()}
        other.values = {layer: array.copy() for layer, array in self.values.items()}
        return other

    def clear(self) -> None:
        """Drop the arrays."""
        self.keys, self.values = {}, {}
