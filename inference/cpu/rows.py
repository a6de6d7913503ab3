"""The rows of one step: token ids, and the caches that they are appended to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inference.kv.factory import NumpyStore
from inference.kv.layout import KvCache
from inference.models.config import RopeConfig
from inference.rope import RopeTables


@dataclass(frozen=True)
class Part:
    """The rows that one cache takes; the first of them stands at the cache's length."""

    cache: KvCache[NumpyStore]
    rows: slice


@dataclass(frozen=True)
class Rows:
    """Token ids (T,) int64, in parts by cache."""

    tokens: np.ndarray
    parts: tuple[Part, ...]
    _tables: RopeTables
    _rope: dict[RopeConfig, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, appended: Sequence[tuple[KvCache[NumpyStore], Sequence[int]]], tables: RopeTables) -> Rows:
        """The rows of a step that appends these ids to these caches."""
        parts: list[Part] = []
        tokens: list[int] = []
        for cache, ids in appended:
            parts.append(Part(cache, slice(len(tokens), len(tokens) + len(ids))))
            tokens += ids
        return cls(np.asarray(tokens, np.int64), tuple(parts), tables)

    def rope(self, rope: RopeConfig) -> np.ndarray:
        """Cos and sin of each row's position, (T, rotary_dim / 2, 2)."""
        if rope not in self._rope:
            spans = [(part.cache.length, part.rows.stop - part.rows.start) for part in self.parts]
            self._rope[rope] = np.concatenate([self._tables.rows(rope, at, at + rows) for at, rows in spans])
        return self._rope[rope]

    def by_part(self, compute: Callable[[Part], np.ndarray]) -> np.ndarray:
        """What `compute` gives for the rows of each part, (T, columns)."""
        results = [compute(part) for part in self.parts]
        return results[0] if len(results) == 1 else np.concatenate(results)
