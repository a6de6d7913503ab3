"""The NumPy executor by itself: steps, caches, accounting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference.cpu.executor import NumpyExecutor
from inference.cpu.kernels import NAMES
from inference.errors import ContextFull
from tests.inference.opening import open_numpy, run_ids

Tiny = Callable[[str], Path]
IDS = [1, 17, 300, 511, 8, 8, 90, 401, 33, 20]


@pytest.fixture(
    params=[("llama", "column_major"), ("gemma3_text", "column_major"), ("llama", "reference")], ids="-".join
)
def executor(request: pytest.FixtureRequest, tiny: Tiny) -> NumpyExecutor:
    family, kernel = request.param
    return open_numpy(tiny(family) / "gguf" / "model-f16.gguf", kernel=kernel)


def test_what_logits_are_asked_for(executor: NumpyExecutor) -> None:
    every = run_ids(executor, IDS, "all")
    last = run_ids(executor, IDS, "last")
    assert every is not None and last is not None
    assert (every.shape, last.shape) == ((10, 512), (512,))
    assert every.dtype == last.dtype == np.float32
    np.testing.assert_allclose(last, every[-1], atol=1e-5)
    assert run_ids(executor, IDS, "none") is None


@pytest.mark.parametrize("sizes", [(10,), (1,) * 10, (3, 1, 5, 1)])
def test_steps_of_any_size_give_the_same(executor: NumpyExecutor, sizes: tuple[int, ...]) -> None:
    cache = executor.new_cache(10)
    rows, start = [], 0
    for size in sizes:
        logits = executor.forward(cache, IDS[start : start + size], "all")
        assert logits is not None
        rows.append(logits)
        start += size
    np.testing.assert_allclose(np.concatenate(rows), run_ids(executor, IDS, "all"), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_weights_and_kv_are_accounted_for(tiny: Tiny, family: str) -> None:
    executor = open_numpy(tiny(family) / "gguf" / "model-f16.gguf", kv="contiguous")
    executor.load()
    before = executor.memory()
    assert before.kv_bytes == 0
    assert before.weights_bytes > 0
    cache = executor.new_cache(10)
    executor.forward(cache, IDS, "none")
    c = executor.config
    held = 2 * c.num_layers * c.kv_size * 4 * cache.context
    assert executor.memory().kv_bytes == held == cache.stats().allocated_bytes
    cache.close()
    after = executor.memory()
    assert (after.kv_bytes, after.peak_bytes) == (0, before.weights_bytes + held)


def test_a_fork_is_accounted_for(tiny: Tiny) -> None:
    executor = open_numpy(tiny("llama") / "gguf" / "model-f16.gguf", kv="contiguous")
    cache = executor.new_cache(10)
    executor.forward(cache, IDS[:3], "none")
    one = executor.memory().kv_bytes
    fork = cache.fork()
    assert executor.memory().kv_bytes == 2 * one
    fork.close()
    assert executor.memory().kv_bytes == one


@pytest.mark.parametrize("kernel", NAMES)
def test_tied_weights_are_held_once(tiny: Tiny, kernel: str) -> None:
    executor = open_numpy(tiny("llama") / "gguf" / "model-f16.gguf", kernel=kernel)
    seen: list[tuple[int, int]] = []
    executor.load(lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, seen[0][1] + 1))
    c = executor.config
    per_layer = (c.q_size + 2 * c.kv_size) * 64 + c.q_size * 64 + 3 * 64 * c.intermediate_size + 2 * 64
    assert executor.memory().weights_bytes == 4 * (c.vocab_size * 64 + c.num_layers * per_layer + 64)


def test_no_room_is_said_before_anything_is_computed(executor: NumpyExecutor) -> None:
    cache = executor.new_cache(5)
    with pytest.raises(ContextFull, match="6 tokens exceed the context of 5"):
        executor.forward(cache, IDS[:6], "none")
    assert cache.length == 0
