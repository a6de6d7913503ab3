"""What a cache says about itself: tokens and bytes by layer group, on both devices, and what forks and closing cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.errors import DoesNotFit
from inference.executor import Executor
from inference.gpu import executor as gpu_executor
from inference.gpu.device import DeviceCaps
from inference.kv.choose import LAYOUTS
from inference.kv.page_pool import PAGE_TOKENS, pages_for
from inference.models.config import ModelConfig
from tests.inference.opening import open_numpy, open_webgpu

Tiny = Callable[[str], Path]
DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)]
CONTEXT = 500
LENGTHS = (1, 32, 33, 330, 500)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(tiny: Tiny, device: str) -> Iterator[Callable[..., Executor[Any]]]:
    """Opens the tiny Gemma, most of whose layers have a window of 32, with a layout."""
    executors: list[Executor[Any]] = []

    def open_one(kv: str, family: str = "gemma3_text") -> Executor[Any]:
        path = tiny(family) / "gguf" / "model-f16.gguf"
        executors.append(open_webgpu(path, kv) if device == "webgpu" else open_numpy(path, kv=kv))
        return executors[-1]

    yield open_one
    for executor in executors:
        executor.close()


def extend(executor: Executor[Any], cache: Any, length: int) -> None:
    """Append tokens up to `length`."""
    while cache.length < length:
        count = min(executor.chunk, length - cache.length)
        executor.forward(cache, [(7 * cache.length + i) % 500 for i in range(count)], "none")


def row_bytes(config: ModelConfig) -> int:
    """K and V of one token in one layer, f32."""
    return 2 * config.kv_size * 4


@pytest.mark.parametrize("layout", [*LAYOUTS, "auto"])
def test_figures_add_up(opened: Callable[..., Executor[Any]], layout: str) -> None:
    executor = opened(layout)
    cache = executor.new_cache(CONTEXT)
    empty = cache.stats()
    assert (empty.tokens, empty.context, empty.used_bytes, empty.allocated_bytes) == (0, CONTEXT, 0, 0)
    for length in LENGTHS:
        extend(executor, cache, length)
        stats = cache.stats()
        assert stats.tokens == length
        for name in ("used_bytes", "allocated_bytes", "capacity_bytes"):
            assert getattr(stats, name) == sum(getattr(group, name) for group in stats.groups)
        for group in stats.groups:
            assert 0 < group.used_bytes <= group.allocated_bytes
            assert 0 < group.held_tokens <= length and group.reason
        assert sorted(layer for group in stats.groups for layer in group.layers) == list(
            range(executor.config.num_layers)
        )
        assert stats.capacity_bytes == empty.capacity_bytes
        assert stats.allocated_bytes <= executor.memory().kv_bytes
    cache.close()
    assert cache.stats() == empty


def test_contiguous_grows_to_the_context_at_most(opened: Callable[..., Executor[Any]]) -> None:
    executor = opened("contiguous")
    token = executor.config.num_layers * row_bytes(executor.config)
    cache = executor.new_cache(CONTEXT)
    extend(executor, cache, 33)
    stats = cache.stats()
    assert stats.used_bytes == 33 * token
    assert stats.allocated_bytes == stats.capacity_bytes == CONTEXT * token
    assert executor.memory().kv_bytes == stats.allocated_bytes


def test_paged_takes_whole_pages(opened: Callable[..., Executor[Any]]) -> None:
    executor = opened("paged")
    token = executor.config.num_layers * row_bytes(executor.config)
    cache = executor.new_cache(CONTEXT)
    for length in LENGTHS:
        extend(executor, cache, length)
        stats = cache.stats()
        assert stats.used_bytes == length * token
        assert stats.allocated_bytes == pages_for(length) * PAGE_TOKENS * token
        assert stats.capacity_bytes == pages_for(CONTEXT) * PAGE_TOKENS * token
    cache.truncate(40)
    assert cache.stats().allocated_bytes == 2 * PAGE_TOKENS * token


def test_a_ring_holds_no_more_than_its_capacity(opened: Callable[..., Executor[Any]], device: str) -> None:
    executor = opened("auto")
    in_flight = 0 if device == "cpu" else executor._queue.in_flight.depth  # type: ignore[attr-defined]
    capacity = 32 + executor.chunk - 1 + in_flight
    cache = executor.new_cache(CONTEXT)
    for length in LENGTHS:
        extend(executor, cache, length)
        ring, paged = sorted(cache.stats().groups, key=lambda group: group.layout != "ring")
        token = len(ring.layers) * row_bytes(executor.config)
        assert (ring.layout, ring.held_tokens) == ("ring", min(length, capacity))
        assert ring.used_bytes == min(length, capacity) * token
        assert ring.allocated_bytes == ring.capacity_bytes == capacity * token
        assert (paged.layout, paged.held_tokens) == ("paged", length)
    assert cache.stats().layout == f"ring ({len(ring.layers)} layers), paged ({len(paged.layers)} layers)"


def test_forks_share_pages_until_they_write(opened: Callable[..., Executor[Any]]) -> None:
    executor = opened("paged", "llama")
    cache = executor.new_cache(CONTEXT)
    extend(executor, cache, 330)
    pool = cache.stores[0].table.pool
    held = pool.held
    forks = [cache.fork() for _ in range(5)]
    assert pool.held == held == pages_for(330)
    for fork in forks:
        extend(executor, fork, 340)
    assert pool.held == held + 5  # each has a copy of the page that it wrote
    extend(executor, cache, 340)
    assert pool.held == held + 5  # the last holder of a page needs no copy
    for kv in (cache, *forks):
        kv.close()
    assert pool.held == 0


def test_closed_pages_are_used_again(opened: Callable[..., Executor[Any]]) -> None:
    executor = opened("paged", "llama")
    for _ in range(3):
        cache = executor.new_cache(CONTEXT)
        extend(executor, cache, CONTEXT)
        taken = executor.memory().kv_bytes
        cache.close()
    assert cache.stores[0].table.pool.capacity == pages_for(CONTEXT)
    again = executor.new_cache(CONTEXT)
    extend(executor, again, CONTEXT)
    assert executor.memory().kv_bytes == taken


@pytest.mark.gpu
def test_pages_that_no_binding_would_hold_are_refused_before_any_is_taken(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's limit is what one binding may hold: here 10 pages."""
    describe = gpu_executor.describe_caps

    def small(*arguments: Any) -> DeviceCaps:
        return replace(describe(*arguments), max_binding=10 * PAGE_TOKENS * 2 * 16 * 4)

    monkeypatch.setattr(gpu_executor, "describe_caps", small)
    executor = open_webgpu(tiny("llama") / "gguf" / "model-f16.gguf", "paged")
    one, other = executor.new_cache(CONTEXT), executor.new_cache(CONTEXT)
    extend(executor, one, 8 * PAGE_TOKENS)
    fork = one.fork()
    expected = executor.forward(fork, [5], "last")
    pool = one.stores[0].table.pool
    before = other.stats()
    with pytest.raises(DoesNotFit, match="needs 2 more pages of 32 tokens, 1 of 10 are left"):
        executor.forward(other, [1] * (PAGE_TOKENS + 1), "none")
    assert (other.stats(), pool.held) == (before, 9)
    np.testing.assert_array_equal(executor.forward(one, [5], "last"), expected)
    executor.close()
