"""The tiered layouts on both devices: where the boundary is, what forks share, bytes, and long caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.cpu.executor import NumpyExecutor
from inference.errors import LayoutUnavailable
from inference.executor import Executor, SampleRequest
from inference.gpu.queue import InFlight
from inference.kernels.dispatch import Binding
from inference.kv.choose import choose_layouts
from inference.kv.layout import LayerGroup
from inference.kv.page_pool import PAGE_TOKENS
from inference.kv.quantize import Bits, RowFormat
from inference.kv.tiered import COLD_BITS, Tiers
from inference.models.config import ModelConfig
from inference.sampling import Sampling
from tests.inference.opening import open_store

Tiny = Callable[[str], Path]

HOT = 12
DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)]
QUANTISED = [layout for layout, bits in COLD_BITS.items() if bits]


def with_hot(config: ModelConfig, layout: str, hot: int) -> tuple[LayerGroup, ...]:
    return tuple(replace(group, hot=hot) for group in choose_layouts(config, layout))


def open_numpy(path: Path, layout: str, hot: int = HOT) -> NumpyExecutor:
    config, store = open_store(path)
    return NumpyExecutor(config, store, with_hot(config, layout, hot))


def open_webgpu(path: Path, layout: str, hot: int = HOT) -> Any:
    from inference.gpu.device import choose_adapter
    from inference.gpu.executor import WebGpuExecutor

    config, store = open_store(path)
    executor = WebGpuExecutor(config, store, *choose_adapter(), with_hot(config, layout, hot))
    executor.load()
    return executor


def open_on(device: str, path: Path, layout: str, hot: int = HOT) -> Executor[Any]:
    return open_numpy(path, layout, hot) if device == "cpu" else open_webgpu(path, layout, hot)


def model(tiny: Tiny, family: str = "llama") -> Path:
    return tiny(family) / "gguf" / "model-f16.gguf"


def random_ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 500, count).tolist()


def append(executor: Executor[Any], cache: Any, ids: Sequence[int], step: int = 30) -> np.ndarray:
    """Append in steps; the logits after the last id."""
    logits = None
    for start in range(0, len(ids), step):
        logits = executor.forward(cache, ids[start : start + step], "last")
    assert logits is not None
    return logits


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 4), st.data())
def test_every_token_is_in_one_tier(hot: int, chunk: int, in_flight: int, data: st.DataObject) -> None:
    """Against a model that remembers what was written where: each position is read where its own token lies."""
    context = 200
    tiers = Tiers.of(LayerGroup("tiered", (0,), None, "", hot), chunk, in_flight, context)
    ring: dict[int, object] = {}
    cold: dict[int, object] = {}
    tokens: list[object] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if data.draw(st.integers(0, 4)) == 0:
            length = data.draw(st.integers(0, len(tokens)))
            del tokens[length:]
            tiers.cold = min(tiers.cold, length)
        length = len(tokens)
        rows = data.draw(st.integers(1, chunk))
        if length + rows > context:
            break
        boundary = tiers.after(length)
        assert tiers.cold <= boundary <= length
        for position in range(tiers.cold, boundary):
            cold[position] = ring[position % tiers.capacity]
        tiers.cold = boundary
        for _ in range(rows):
            ring[len(tokens) % tiers.capacity] = token = object()
            tokens.append(token)
        found = [cold[p] if p < boundary else ring[p % tiers.capacity] for p in range(len(tokens))]
        assert found == tokens


def test_taking_back_what_is_in_flight_leaves_the_hot_tokens() -> None:
    hot, in_flight = 10, 4
    tiers = Tiers.of(LayerGroup("tiered", (0,), None, "", hot), 16, in_flight, 200)
    for length in range(100):
        tiers.cold = tiers.after(length)
        assert length + 1 - in_flight - tiers.cold >= min(hot, length + 1 - in_flight)


def test_the_ring_is_no_longer_than_the_context() -> None:
    group = LayerGroup("tiered", (0,), None, "", 128)
    assert Tiers.of(group, 64, 4, 8192).capacity == 128 + 64 + 4
    assert Tiers.of(group, 64, 4, 100).capacity == 100


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_float_tiers_are_exact_through_forks_and_truncations(tiny: Tiny, device: str, family: str) -> None:
    path, ids = model(tiny, family), random_ids(150)
    plain = open_numpy(path, "contiguous", 0)
    executor = open_on(device, path, "tiered")

    def expected(tokens: Sequence[int]) -> np.ndarray:
        return append(plain, plain.new_cache(200), tokens)

    cache = executor.new_cache(200)
    append(executor, cache, ids[:70])
    fork = cache.fork()
    np.testing.assert_allclose(append(executor, cache, ids[70:100], 1), expected(ids[:100]), atol=1e-4)
    other = [*ids[:70], *random_ids(45, 1)]
    np.testing.assert_allclose(append(executor, fork, other[70:]), expected(other), atol=1e-4)
    # To where it was hot, then to where it was cold, into the middle of a page that the fork holds too.
    for length, step in ((95, 30), (40, 7)):
        assert cache.truncate(length) == length
        ids = [*ids[:length], *random_ids(70, length)]
        np.testing.assert_allclose(append(executor, cache, ids[length:110], step), expected(ids[:110]), atol=1e-4)
    np.testing.assert_allclose(append(executor, fork, [7]), expected([*other, 7]), atol=1e-4)
    cache.truncate(0)
    ids = random_ids(150, 2)
    np.testing.assert_allclose(append(executor, cache, ids), expected(ids), atol=1e-4)
    cache.close()
    np.testing.assert_allclose(append(executor, cache, ids[:60]), expected(ids[:60]), atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("layout", "most"), [("tiered-int8", 0.03), ("tiered-int4", 0.4)])
def test_integers_come_close(tiny: Tiny, device: str, layout: str, most: float) -> None:
    """Logits of every position, most of whose keys are quantised; not equal, or nothing was."""
    path, ids = model(tiny), random_ids(160)
    results = []
    for executor in (open_numpy(path, "contiguous", 0), open_on(device, path, layout)):
        cache = executor.new_cache(200)
        rows = [executor.forward(cache, ids[start : start + 16], "all") for start in range(0, 160, 16)]
        results.append(np.concatenate([row for row in rows if row is not None]))
    error = np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0])
    assert 1e-4 < error < most


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", QUANTISED)
def test_taking_back_leaves_no_trace(tiny: Tiny, device: str, layout: str) -> None:
    """Nor does a fork that goes on: what each demotes stays its own."""
    executor, ids = open_on(device, model(tiny), layout), random_ids(90)
    cache = executor.new_cache(200)
    append(executor, cache, ids)
    for length in (90, 41):  # hot, then cold
        cache.truncate(length)
        expected = append(executor, cache.fork(), [1, 2, 3], 1)
        fork = cache.fork()
        append(executor, fork, random_ids(60, 1), 7)
        append(executor, cache, [8])
        cache.truncate(length)
        np.testing.assert_allclose(append(executor, cache, [1, 2, 3], 1), expected, atol=1e-5)


def test_what_is_cold_stays_quantised(tiny: Tiny) -> None:
    executor = open_numpy(model(tiny), "tiered-int4")
    cache = executor.new_cache(200)
    append(executor, cache, random_ids(90))
    (store,) = cache.stores
    before = np.stack(store.view(1, 0, 50))
    cache.truncate(50)
    np.testing.assert_array_equal(np.stack(store.view(1, 0, 50)), before)
    append(executor, cache, random_ids(30, 1))
    np.testing.assert_array_equal(np.stack(store.view(1, 0, 50)), before)
    k = before[0, 0, 3]
    assert len(set(np.round(np.abs(k[k != 0]) / np.abs(k).max() * 7, 2))) <= 7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", COLD_BITS)
def test_forks_share_cold_pages_and_copy_what_they_write(tiny: Tiny, device: str, layout: str) -> None:
    executor = open_on(device, model(tiny), layout)
    cache = executor.new_cache(300)
    append(executor, cache, random_ids(90))
    (store,) = cache.stores
    pool, pages = store.table.pool, list(store.table.pages)
    assert len(pages) == -(-store.tiers.cold // PAGE_TOKENS) > 1 and store.tiers.cold % PAGE_TOKENS
    fork = cache.fork()
    (other,) = fork.stores
    assert other.table.pages == pages and pool.held == len(pages)
    append(executor, fork, random_ids(30, 1), 1)
    assert other.table.pages[: len(pages) - 1] == pages[:-1], "full pages were copied"
    assert pages[-1] not in other.table.pages, "a page was written that another sequence holds"
    assert store.table.pages == pages
    append(executor, cache, random_ids(30, 2), 1)
    assert store.table.pages[: len(pages)] == pages, "the last holder of a page copied it"
    fork.close()
    assert pool.held == len(store.table.pages)
    cache.truncate(5)
    assert pool.held == 1
    cache.close()
    assert pool.held == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", COLD_BITS)
def test_bytes(tiny: Tiny, device: str, layout: str) -> None:
    executor = open_on(device, model(tiny), layout)
    cache = executor.new_cache(300)
    append(executor, cache, random_ids(110), 10)
    (stats,) = cache.stats().groups
    (store,) = cache.stores
    c = executor.config  # type: ignore[attr-defined]
    cold = store.tiers.cold
    assert cold >= 100 - HOT - 4
    hot_bytes = c.num_layers * 2 * c.kv_size * 4
    scales = 4 if COLD_BITS[layout] else 0
    cold_bytes = c.num_layers * (2 * c.kv_size * (COLD_BITS[layout] or 32) // 8 + scales * c.num_kv_heads)
    assert stats.held_tokens == 110
    assert stats.used_bytes == (110 - cold) * hot_bytes + cold * cold_bytes
    pages = -(-cold // PAGE_TOKENS)
    assert stats.allocated_bytes == store.tiers.capacity * hot_bytes + pages * PAGE_TOKENS * cold_bytes
    full = -(-(300 - store.tiers.lag) // PAGE_TOKENS)
    assert stats.capacity_bytes == store.tiers.capacity * hot_bytes + full * PAGE_TOKENS * cold_bytes
    assert cache.stats().layout == layout
    assert executor.memory().kv_bytes >= stats.allocated_bytes
    held = executor.memory().kv_bytes
    fork = cache.fork()
    assert executor.memory().kv_bytes - held < stats.capacity_bytes - full * PAGE_TOKENS * cold_bytes + 256
    fork.close()
    assert executor.memory().kv_bytes == held


@pytest.mark.gpu
@pytest.mark.parametrize("layout", COLD_BITS)
def test_tokens_in_flight_move_the_boundary_by_themselves(
    tiny: Tiny, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply of several tokens in flight leaves the same cache as its tokens appended one by one."""
    monkeypatch.setattr("inference.gpu.executor.SOFTWARE_IN_FLIGHT", InFlight(groups=2, steps=2, seconds=60))
    executor, ids = open_webgpu(model(tiny), layout), random_ids(40)
    request = SampleRequest(Sampling(temperature=0), 1, tuple(ids))
    for length in (40, 33):  # the second time after taking back, into what was cold
        cache = executor.new_cache(200)
        append(executor, cache, [*ids[:length], *random_ids(20, 3)])
        cache.truncate(length - 10)
        by_hand = cache.fork()
        stream = executor.stream(cache, ids[length - 10 : length], request)
        sampled = [next(stream).id for _ in range(60)]
        stream.close()
        assert cache.length > length + 59, "nothing was in flight"
        cache.truncate(length + 59)
        executor.forward(by_hand, ids[length - 10 : length], "none")
        for token in sampled[:59]:
            executor.forward(by_hand, [token], "none")
        assert cache.stores[0].tiers.cold >= by_hand.stores[0].tiers.cold
        assert length + 59 - cache.stores[0].tiers.cold >= HOT
        found, expected = (executor.forward(held, [5, 6, 7], "last") for held in (cache, by_hand))
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (1e-5 if layout == "tiered" else 0.2)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", COLD_BITS)
def test_thousands_of_tokens_decode_as_in_numpy(tiny: Tiny, layout: str) -> None:
    """No layout has a longest cache: 6,000 tokens written directly into both devices' tiers, then 8 decoded."""
    path, length, context = model(tiny), 6000, 6100
    gpu = open_webgpu(path, layout, hot=64)
    gpu_cache = gpu.new_cache(context)
    (there,) = gpu_cache.stores
    # The lags are equal: NumPy has nothing in flight.
    cpu = open_numpy(path, layout, hot=there.tiers.lag)
    cpu_cache = cpu.new_cache(context)
    (here,) = cpu_cache.stores
    c, rng = cpu.config, np.random.default_rng(4)
    for start in range(0, length, gpu.chunk):
        rows = min(gpu.chunk, length - start)
        for cache in (cpu_cache, gpu_cache):
            cache.ensure(start + rows)
            cache.begin()
            cache.length += rows
        for layer in range(c.num_layers):
            k, v = rng.standard_normal((2, c.num_kv_heads, rows, c.head_dim)).astype(np.float32)
            here.append(layer, start, k, v)
    boundary = here.tiers.cold
    assert boundary == there.tiers.cold > 5800 and here.table.pages == there.table.pages
    write = gpu._gpu.queue.write_buffer
    buffers = there.buffers()
    hot = np.arange(boundary, length)
    for layer in range(c.num_layers):
        ring = np.zeros((there.tiers.capacity, c.num_kv_heads, 2, c.head_dim), np.float32)
        ring[hot % there.tiers.capacity] = np.stack(here.view(layer, boundary, length), axis=2).transpose(1, 0, 2, 3)
        write(buffers[Binding("kv", f"{layer}.hot")], 0, ring)
        write(buffers[Binding("kv", f"{layer}.cold")], 0, here._pages.rows[layer])
    write(buffers[Binding("kv", "0.tiers")], 0, np.array([boundary, boundary], np.uint32))
    for token in random_ids(8, 5):
        expected, found = cpu.forward(cpu_cache, [token], "last"), gpu.forward(gpu_cache, [token], "last")
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 2e-3


@pytest.mark.parametrize(("layout", "head_dim", "per_word"), [("tiered-int8", 18, 4), ("tiered-int4", 20, 8)])
def test_heads_that_do_not_fill_their_words_are_refused(tiny: Tiny, layout: str, head_dim: int, per_word: int) -> None:
    config, _ = open_store(model(tiny))
    odd = replace(config, head_dim=head_dim)
    with pytest.raises(LayoutUnavailable, match=rf"{layout} .*packs {per_word} numbers.*{head_dim}, is not") as caught:
        choose_layouts(odd, layout)
    assert "\n" not in str(caught.value)
    choose_layouts(odd, "tiered")


def test_the_reason_says_what_older_tokens_become(tiny: Tiny) -> None:
    config, _ = open_store(model(tiny))
    reasons = {layout: choose_layouts(config, layout)[0].reason for layout in COLD_BITS}
    assert "8-bit integers" in reasons["tiered-int8"] and "4-bit integers" in reasons["tiered-int4"]
    assert all(reason.startswith("asked for: the last 256 tokens") for reason in reasons.values())


@pytest.mark.parametrize(("bits", "ratio"), [(8, 0.26), (4, 0.14)])
def test_quantised_rows_are_small(bits: Bits, ratio: float) -> None:
    assert RowFormat(bits, 64).columns <= ratio * 2 * 64
