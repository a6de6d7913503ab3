"""Parts of an output, computed side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from inference.cpu.threads import FEW_ROWS, MIN_ROWS, MIN_WEIGHT_BYTES, Threads


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    made = Threads(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("rows", [1, MIN_ROWS, 2 * MIN_ROWS, 4 * MIN_ROWS + 3])
def test_each_row_is_computed_once(threads: Threads, rows: int) -> None:
    seen: list[int] = []

    def part(where: slice) -> np.ndarray:
        seen.extend(range(where.start, where.stop))
        return np.arange(where.start, where.stop, dtype=np.float32)[:, None] + np.zeros(3, np.float32)

    result = threads.by_rows(rows, 3, part)
    np.testing.assert_array_equal(result, np.repeat(np.arange(rows, dtype=np.float32)[:, None], 3, axis=1))
    assert sorted(seen) == list(range(rows))


def test_parts_run_side_by_side() -> None:
    threads = Threads(2)
    both = threading.Barrier(2, timeout=30)

    def part(where: slice) -> np.ndarray:
        both.wait()
        return np.zeros((where.stop - where.start, 1), np.float32)

    assert threads.by_rows(2 * MIN_ROWS, 1, part).shape == (2 * MIN_ROWS, 1)
    threads.close()


def test_an_error_of_another_thread_is_raised() -> None:
    threads = Threads(2)

    def part(where: slice) -> np.ndarray:
        if where.start:
            raise ArithmeticError("in the second part")
        return np.zeros((where.stop, 1), np.float32)

    with pytest.raises(ArithmeticError, match="in the second part"):
        threads.by_rows(2 * MIN_ROWS, 1, part)
    threads.close()


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, MIN_ROWS])
def test_product_with_a_large_weight(threads: Threads, rows: int) -> None:
    rng = np.random.default_rng(1)
    columns = 16
    by_columns = rng.standard_normal((columns, 2 * MIN_WEIGHT_BYTES // 4 // columns + 5), dtype=np.float32)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    found = threads.product(x, by_columns.T)
    np.testing.assert_allclose(found, np.einsum("tk,kn->tn", x, by_columns), atol=2e-5)
