"""The table of matmuls: each of the shape's, its bytes those of its format, its times the GPU's."""

import json
import time
from dataclasses import replace

import pytest

from inference import bench_matmul
from inference.bench_matmul import MatmulReport, MatmulSpeed
from inference.errors import Cancelled, DeviceUnavailable
from tests.inference.tiny_shape import TINY_SHAPE

SHAPES = {"tiny": TINY_SHAPE}
SPEED = MatmulSpeed("feed_forward.down", "q4_0", 4096, 14336, 33_030_144, 9, "gemv_subgroup", 2e-5, 2.5e-5)


def test_figures_follow_from_bytes_and_seconds() -> None:
    report = MatmulReport("8b", "some GPU", 2**29, 4000.0, (SPEED,))
    head, row = report.rows
    cells = dict(zip(head, row, strict=True))
    assert cells["MATRIX"] == "4096 x 14336"
    assert (cells["GB/S"], cells["OF COPY"], cells["GB/S IN TURN"]) == ("1,652", "41%", "1,321")
    (plain,) = json.loads(json.dumps(report.to_json()))["matmuls"]
    assert plain["gbs"] == pytest.approx(1651.5072)
    assert plain["of_copy"] == pytest.approx(0.4128768)
    assert plain["in_turn_gbs"] == pytest.approx(1321.20576)


@pytest.mark.gpu
def test_every_matmul_of_the_shape_is_measured_in_each_format() -> None:
    heard: list[str] = []
    began = time.perf_counter()
    report = bench_matmul.run("tiny", ("q4_0", "q8_0", "f16"), SHAPES, heard.append)
    took = time.perf_counter() - began
    sizes = {"qkv": 512 * 256, "output": 256 * 256, "gate_up": 1024 * 256, "down": 512 * 256, "lm_head": 512 * 256}
    bits = {"q4_0": 4.5, "q8_0": 8.5, "f16": 16}
    found = [(each.format, each.name.rpartition(".")[2], each.weight_bytes) for each in report.matmuls]
    assert found == [(name, kind, count * bits[name] / 8) for name in bits for kind, count in sizes.items()]
    assert heard[0] == "copying" and heard[-1] == "f16, lm_head"
    assert report.copy_gbs > 0
    assert 0 < sum(each.seconds + each.in_turn_seconds for each in report.matmuls) < took


@pytest.mark.gpu
def test_there_are_as_many_matrices_as_no_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = bench_matmul.describe_caps
    monkeypatch.setattr(bench_matmul, "describe_caps", lambda *given: replace(caps(*given), software=False))
    monkeypatch.setattr(bench_matmul, "MATRICES_BYTES", 300_000)
    monkeypatch.setattr(bench_matmul, "COPY_BYTES", 2**20)
    report = bench_matmul.run("tiny", ("q4_0",), SHAPES)
    assert [each.matrices for each in report.matmuls] == [5, 9, 3, 5, 1]
    assert report.copy_bytes == 2**20


@pytest.mark.gpu
def test_it_can_be_cancelled() -> None:
    def cancel(stage: str) -> None:
        raise Cancelled(stage)

    with pytest.raises(Cancelled):
        bench_matmul.run("tiny", ("q4_0",), SHAPES, cancel)


@pytest.mark.gpu
def test_without_timestamps_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = bench_matmul.describe_caps
    monkeypatch.setattr(bench_matmul, "describe_caps", lambda *given: replace(caps(*given), timestamps=False))
    with pytest.raises(DeviceUnavailable, match="no timestamps"):
        bench_matmul.run("tiny", ("q4_0",), SHAPES)
