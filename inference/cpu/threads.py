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
"""Weights of a part of one row's product: with fewer, they are read before a thread has woken up."""
MIN_SHARED_BYTES = 3 << 20
"""The same where a few rows share the weights: they are not only read but multiplied, for much longer."""
FEW_ROWS = 6
"""So many rows are multiplied faster one after the other: BLAS rearranges the weights for products of several."""


def multiply(x: np.ndarray, weight: np.ndarray, result: np.ndarray | None = None) -> np.ndarray:
    """x (T, K) @ weight (N, K).T in one thread, into `result` (T, N) where it is given."""
    if result is None:
        result = np.empty((len(x), len(weight)), np.float32)
    step = 1 if len(x) <= FEW_ROWS else len(x)
    for row in range(0, len(x), step):
        np.matmul(x[row : row + step], weight.T, out=result[row : row + step])
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
        parts = min(self._count, weight.nbytes // (MIN_WEIGHT_BYTES if len(x) == 1 else MIN_SHARED_BYTES))
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
