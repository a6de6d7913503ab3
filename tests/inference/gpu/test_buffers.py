"""The buffer pool: bytes by purpose, limits, and uploads in bounded pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

from inference.errors import DoesNotFit
from inference.gpu import buffers
from inference.gpu.buffers import BufferPool
from inference.gpu.device import choose_adapter, open_device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Any:
    adapter, _ = choose_adapter()
    return open_device(adapter)


def read(device: Any, buffer: Any) -> np.ndarray:
    return np.frombuffer(device.queue.read_buffer(buffer), np.uint8)


def test_bytes_by_purpose_and_their_peak(device: Any) -> None:
    pool = BufferPool(device, 1 << 20)
    weights, kv = pool.create("weights", 1000, "w"), pool.create("kv", 300, "k")
    pool.create("scratch", 50, "s")
    pool.create_readback(64, "r")
    assert pool.bytes == {"weights": 1000, "kv": 300, "scratch": 52, "staging": 64}
    assert pool.peak == 1416
    pool.destroy(weights)
    assert pool.bytes["weights"] == 0 and pool.peak == 1416
    pool.create("kv", 100, "k2")
    assert pool.bytes["kv"] == 400 and pool.peak == 1416
    pool.create("kv", 2000, "k3")
    assert pool.peak == 2516
    pool.destroy(kv)
    pool.destroy_all()
    assert set(pool.bytes.values()) == {0}


@pytest.mark.parametrize(("asked", "size"), [(0, 16), (1, 16), (16, 16), (17, 20), (18, 20)])
def test_buffers_are_whole_words(device: Any, asked: int, size: int) -> None:
    pool = BufferPool(device, 1 << 20)
    assert pool.create("scratch", asked, "s").size == pool.bytes["scratch"] == size
    pool.destroy_all()


def test_a_buffer_larger_than_the_device_allows(device: Any) -> None:
    pool = BufferPool(device, 1000)
    with pytest.raises(DoesNotFit, match=r"logits needs one buffer of 1,004 bytes; the device allows 1,000"):
        pool.create("scratch", 1001, "logits")
    assert pool.bytes["scratch"] == pool.peak == 0


def test_more_than_the_limit_of_memory(device: Any) -> None:
    pool = BufferPool(device, 1 << 20, memory_limit=1000)
    pool.create("weights", 900, "w")
    with pytest.raises(DoesNotFit, match=r"kv cache needs 200 bytes more, 1,100 in all; the limit is 1,000"):
        pool.create("kv", 200, "kv cache")
    assert (pool.bytes["weights"], pool.bytes["kv"], pool.peak) == (900, 0, 900)
    pool.create("kv", 100, "kv cache")
    pool.destroy_all()


def test_what_the_device_refuses_is_not_counted(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(device, 1 << 20)

    def refuse(**_: Any) -> None:
        raise wgpu.GPUOutOfMemoryError("out of memory")

    monkeypatch.setattr(type(device), "create_buffer", lambda self, **options: refuse(**options))
    with pytest.raises(DoesNotFit, match=r"refused 100 bytes for w .*--device cpu") as caught:
        pool.create("weights", 100, "w")
    assert "\n" not in str(caught.value)
    assert pool.bytes["weights"] == pool.peak == 0


@pytest.mark.parametrize(("size", "offset", "pieces"), [(64, 0, [64]), (200, 8, [64, 64, 64, 8]), (4, 0, [4])])
def test_uploads_go_in_pieces(
    device: Any, monkeypatch: pytest.MonkeyPatch, size: int, offset: int, pieces: list[int]
) -> None:
    monkeypatch.setattr(buffers, "UPLOAD_PIECE", 64)
    pool = BufferPool(device, 1 << 20)
    buffer = pool.create("weights", 256, "w")
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    written: list[int] = []
    pending: list[int] = []
    write, flush = device.queue.write_buffer, pool.flush

    def record(target: Any, start: int, piece: np.ndarray) -> None:
        written.append(piece.size)
        pending.append(piece.size)
        assert sum(pending) <= 2 * 64
        write(target, start, piece)

    def record_flush() -> None:
        pending.clear()
        flush()

    monkeypatch.setattr(device.queue, "write_buffer", record, raising=False)
    monkeypatch.setattr(pool, "flush", record_flush)
    pool.upload(buffer, data.view(np.uint32), offset)
    pool.flush()
    assert written == pieces
    assert read(device, buffer)[offset : offset + size].tolist() == data.tolist()
    assert not read(device, buffer)[offset + size :].any()
    pool.destroy_all()


def test_many_small_uploads_are_flushed_as_well(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "UPLOAD_PIECE", 64)
    pool = BufferPool(device, 1 << 20)
    buffer = pool.create("weights", 256, "w")
    flushes = []
    flush = pool.flush
    monkeypatch.setattr(pool, "flush", lambda: (flushes.append(1), flush()))
    for start in range(0, 256, 16):
        pool.upload(buffer, np.full(16, start, np.uint8), start)
    assert len(flushes) == 256 // 64
    assert read(device, buffer)[::16].tolist() == list(range(0, 256, 16))
    pool.destroy_all()
