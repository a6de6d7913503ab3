"""Threads of our own, each with a part of an operation's output.

BLAS's threads wait for each other busily in every product: where another program has one of the cores, a product
takes up to ten times as long. These sleep until there is work, and a part takes as long as it takes one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

MIN_ROWS = 32
"""Rows of a part: with fewer, a product is bound by reading the weights, which each thread would do again."""
MIN_WEIGHT_BYTES = 16 << 20
"""Weights of a part of a product: with fewer, one row has read them before a thread has woken up."""
FEW_ROWS = 8
"""So many rows are multiplied faster one after the other: BLAS rearranges the weights for a product of several."""
BLOCK_BYTES = 4 << 20
"""Weights that are still in the processor's cache when the next row comes to them."""


def multiply(x: np.ndarray, weight: np.ndarray, result: np.ndarray | None = None) -> np.ndarray:
    """x (T, K) @ weight (N, K).T in one thread, into `result` (T, N) where it is given."""
    if result is None:
        result = np.empty((len(x), len(weight)), np.float32)
    if not 1 < len(x) <= FEW_ROWS:
        return np.matmul(x, weight.T, out=result)
    block = max(1, BLOCK_BYTES // weight[0].nbytes)
    for first in range(0, len(weight), block):
        columns = slice(first, first + block)
        for row in range(len(x)):
            np.matmul(x[row : row + 1], weight[columns].T, out=result[row : row + 1, columns])
    return result


class Threads:
    """Computes up to `count` parts at the same time. NumPy leaves the interpreter free while it computes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(max(1, count - 1), "numpy")

    def by_rows(self, rows: int, columns: int, part: Callable[[slice], np.ndarray]) -> np.ndarray:
        """float32 (rows, columns), of which part(s) gives the rows of slice s."""
        parts = min(self._count, rows // MIN_ROWS)
        if parts < 2:
            return part(slice(0, rows))
        result = np.empty((rows, columns), np.float32)

        def fill(rows: slice) -> None:
            result[rows] = part(rows)

        self._run(fill, rows, parts)
        return result

    def product(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """x (T, K) @ weight (N, K).T, in parts of N. Not for use within a part: there is `multiply`."""
        parts = min(self._count, weight.nbytes // MIN_WEIGHT_BYTES)
        if parts < 2:
            return multiply(x, weight)
        result = np.empty((len(x), len(weight)), np.float32)
        self._run(lambda part: multiply(x, weight[part], result[:, part]), len(weight), parts)
        return result

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)

    def _run(self, work: Callable[[slice], object], size: int, parts: int) -> None:
        """`work` on each of `parts` equal slices of 0 .. size - 1, the first one in this thread."""
        edges = [size * index // parts for index in range(parts + 1)]
        first, *others = [slice(*edge) for edge in pairwise(edges)]
        running = [self._pool.submit(work, other) for other in others]
        work(first)
        for each in running:
            each.result()
