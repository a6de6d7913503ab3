"""Threads of our own, each with a part of an operation's output.

BLAS's threads wait for each other busily in every product: where another program has one of the cores, a product
takes up to ten times as long. These sleep until there is work, and a part takes as long as it takes one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import numpy as np

MIN_ROWS = 32
"""Rows of a part: with fewer, a product is bound by reading the weights, which each thread would do again."""
MIN_WEIGHT_BYTES = 16 << 20
"""Weights of a part of a product: with fewer, one row has read them before a thread has woken up."""
FEW_ROWS = 8
"""So many rows are multiplied faster one after the other, half as many by weights of no more than a block: BLAS
rearranges the weights for a product of several rows."""
BLOCK_BYTES = 4 << 20
"""Weights that are still in the processor's cache when the next row comes to them."""


def multiply(x: np.ndarray, weight: np.ndarray, result: np.ndarray | None = None) -> np.ndarray:
    """x (T, K) @ weight (N, K).T in one thread, into `result` (T, N) where it is given."""
    if result is None:
        result = np.empty((len(x), len(weight)), np.float32)
    few = FEW_ROWS if weight.nbytes > BLOCK_BYTES else FEW_ROWS // 2
    if not 1 < len(x) <= few:
        return np.matmul(x, weight.T, out=result)
    for block in _blocks(weight, BLOCK_BYTES):
        for row in range(len(x)):
            np.matmul(x[row : row + 1], weight[block].T, out=result[row : row + 1, block])
    return result


def _blocks(weight: np.ndarray, size: int) -> list[slice]:
    """Rows of `weight` in pieces of about `size` bytes."""
    count = max(1, weight.nbytes // size)
    return _pieces(len(weight), count)


def _pieces(size: int, count: int) -> list[slice]:
    """0 .. size - 1 in `count` equal slices."""
    edges = [size * index // count for index in range(count + 1)]
    return [slice(*edge) for edge in pairwise(edges)]


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

        self._run(fill, _pieces(rows, parts))
        return result

    def product(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """x (T, K) @ weight (N, K).T, in parts of N. Not for use within a part: there is `multiply`."""
        parts = _blocks(weight, MIN_WEIGHT_BYTES)
        if self._count < 2 or len(parts) < 2:
            return multiply(x, weight)
        result = np.empty((len(x), len(weight)), np.float32)
        self._run(lambda part: multiply(x, weight[part], result[:, part]), parts)
        return result

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)

    def _run(self, work: Callable[[slice], object], parts: Sequence[slice]) -> None:
        """`work` on each part. This thread takes one after the other, and so does each other that has woken up."""
        left = deque(parts)

        def take() -> None:
            while True:
                try:
                    part = left.popleft()
                except IndexError:
                    return
                work(part)

        others = [self._pool.submit(take) for _ in range(min(self._count, len(parts)) - 1)]
        try:
            take()
        finally:
            left.clear()
            # What has not begun would find nothing to do.
            running = [other for other in others if not other.cancel()]
            wait(running)
        for other in running:
            other.result()
