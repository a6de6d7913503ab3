"""The contiguous layout in NumPy: one K and one V array a layer, (K, capacity, E), grown in steps."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np

from inference.errors import ContextFull
from inference.events import KvStats
from inference.kv.layout import grown_capacity, kv_bytes_per_token
from inference.models.config import ModelConfig


class NumpyContiguousCache:
    """Keys and values in host memory, f32, heads first so that each head's keys are one BLAS operand.

    It and its forks enter themselves in `siblings`, by which the executor knows what memory is held.
    """

    def __init__(self, config: ModelConfig, context: int, siblings: WeakSet[NumpyContiguousCache]) -> None:
        siblings.add(self)
        self.config = config
        self.context = context
        self.length = 0
        self.capacity = 0
        self._siblings = siblings
        self._keys: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def ensure(self, tokens: int) -> None:
        if tokens > self.context:
            raise ContextFull(f"{tokens} tokens exceed the context of {self.context}")
        if tokens <= self.capacity:
            return
        capacity = grown_capacity(tokens, self.context)
        self._keys = self._resized(self._keys, capacity)
        self._values = self._resized(self._values, capacity)
        self.capacity = capacity

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store k and v (T, K*E) at positions length .. length + T - 1; `length` itself moves at the step's end."""
        end = self.length + k.shape[0]
        shape = (k.shape[0], self.config.num_kv_heads, self.config.head_dim)
        # (T, K, E) -> (K, T, E)
        self._keys[layer][:, self.length : end] = k.reshape(shape).transpose(1, 0, 2)
        self._values[layer][:, self.length : end] = v.reshape(shape).transpose(1, 0, 2)

    def view(self, layer: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the first `tokens` positions, each (K, tokens, E)."""
        return self._keys[layer][:, :tokens], self._values[layer][:, :tokens]

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def fork(self) -> NumpyContiguousCache:
        other = NumpyContiguousCache(self.config, self.context, self._siblings)
        other.length = self.length
        other.capacity = self.capacity
        other._keys = [array.copy() for array in self._keys]
        other._values = [array.copy() for array in self._values]
        return other

    def stats(self) -> KvStats:
        per_token = kv_bytes_per_token(self.config, itemsize=4)
        return KvStats(
            layout="contiguous",
            tokens=self.length,
            capacity_tokens=self.capacity,
            context=self.context,
            used_bytes=self.length * per_token,
            capacity_bytes=self.capacity * per_token,
        )

    def close(self) -> None:
        self._keys, self._values = [], []
        self.capacity = self.length = 0

    def _resized(self, arrays: list[np.ndarray], capacity: int) -> list[np.ndarray]:
        c = self.config
        resized = []
        for layer in range(c.num_layers):
            array = np.zeros((c.num_kv_heads, capacity, c.head_dim), np.float32)
            if arrays:
                array[:, : self.length] = arrays[layer][:, : self.length]
            resized.append(array)
        return resized
