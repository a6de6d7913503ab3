"""Threads of our own, each with a part of a step's rows.

BLAS's threads wait for each other busily in every product: where another program has one of the cores, a product
takes up to ten times as long. These sleep until there is work, and a part takes as long as it takes one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

MIN_ROWS = 32
"""Rows of a part: with fewer, a product is bound by reading the weights, which each thread would do again."""


class RowThreads:
    """Computes rows in up to `count` parts at the same time. NumPy leaves the interpreter free while it computes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(max(1, count - 1), "rows")

    def map(self, rows: int, columns: int, part: Callable[[slice], np.ndarray]) -> np.ndarray:
        """float32 (rows, columns), of which part(s) gives the rows of slice s."""
        parts = min(self._count, rows // MIN_ROWS)
        if parts < 2:
            return part(slice(0, rows))
        result = np.empty((rows, columns), np.float32)

        def fill(index: int) -> None:
            where = slice(rows * index // parts, rows * (index + 1) // parts)
            result[where] = part(where)

        others = [self._pool.submit(fill, index) for index in range(1, parts)]
        fill(0)
        for other in others:
            other.result()
        return result

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)
