"""Weights in float32: exact however they are stored, and made in threads that end with the caller."""

import threading

import numpy as np
import pytest

from inference.cpu import weights
from inference.cpu.weights import dequantize, in_threads
from inference.errors import Cancelled
from inference.formats.planar import from_dense
from inference.formats.quantize import quantize

MATRIX = np.random.default_rng(0).standard_normal((70, 96), np.float32)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("block", [1, 1000, 1 << 18])
def test_blocks_make_no_difference(by_columns: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BLOCK", block)
    for tensor in (from_dense(MATRIX), quantize(from_dense(MATRIX), "q4_1")):
        made = dequantize(tensor, by_columns)
        assert made.flags.f_contiguous if by_columns else made.flags.c_contiguous
        np.testing.assert_array_equal(made, tensor.dequantize())


def test_progress_is_told_in_order_and_may_end_it() -> None:
    heard: list[tuple[int, int]] = []
    begun: list[int] = []
    gate = threading.Event()

    def do(item: int) -> None:
        begun.append(item)
        if item > 2:
            gate.wait(10)

    def progress(done: int, total: int) -> None:
        heard.append((done, total))
        if done == 3:
            threading.Timer(0.05, gate.set).start()
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        in_threads(do, range(100), progress)
    assert heard == [(1, 100), (2, 100), (3, 100)]
    assert len(begun) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_an_error_is_raised_as_it_is() -> None:
    def fail(item: int) -> None:
        raise Cancelled(str(item))

    with pytest.raises(Cancelled, match="0"):
        in_threads(fail, range(3), lambda *_: None)
