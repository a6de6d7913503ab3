"""The bdpa layout: its index, what it rebuilds, its pages, and whole models over it on both devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import DoesNotFit, LayoutUnavailable
from inference.executor import SampleRequest
from inference.gpu.queue import InFlight
from inference.kernels.dispatch import Binding
from inference.kv.bdpa import NumpyBdpa, NumpyBdpaPages
from inference.kv.bdpa_index import NO_SLOT, BasisIndex
from inference.kv.choose import choose_layouts
from inference.kv.host_arrays import HostMemory
from inference.kv.layout import LayerGroup
from inference.kv.page_pool import PAGE_TOKENS, pages_for
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.sampling import Sampling
from tests.inference.opening import open_numpy, open_webgpu

Tiny = Callable[[str], Path]
FAMILIES = ["llama", "gemma3_text"]
GROUP = LayerGroup("bdpa", (0,), None, "asked for")
CONFIG = ModelConfig(
    family="test", name="test", hidden_size=64, intermediate_size=64, num_heads=2, num_kv_heads=2, head_dim=32,
    vocab_size=512, max_context=512, norm_eps=1e-6, activation="silu", attention_scale=1.0,
    layers=(LayerConfig(None, RopeConfig(1e4, 24, False)),), weights={},
)  # fmt: skip


def model(tiny: Tiny, family: str) -> Path:
    return tiny(family) / "gguf" / "model-f16.gguf"


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def plain_entries(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The index of `ids` made at once."""
    rows: dict[int, int] = {}
    entries = []
    for position, token in enumerate(ids):
        if token in rows:
            entries.append((rows[token], position - len(rows)))
        else:
            rows[token] = len(rows)
            entries.append((rows[token], NO_SLOT))
    return entries


@given(st.lists(st.tuples(st.floats(0, 1), st.lists(st.integers(0, 9), max_size=20)), max_size=8))
def test_the_index_after_any_history(steps: list[tuple[float, list[int]]]) -> None:
    index, held = BasisIndex(), list[int]()
    for keep, ids in steps:
        position = round(keep * len(held))
        held[position:] = ids
        index.note(position, ids)
        entries = plain_entries(held)
        assert index.entries(0, len(held)).tolist() == [list(entry) for entry in entries]
        for tokens in range(len(held) + 1):
            rows = sum(slot == NO_SLOT for _, slot in entries[:tokens])
            assert index.counts(tokens) == (rows, tokens - rows)


def test_tokens_without_known_ids_may_be_new_or_not() -> None:
    index = BasisIndex()
    index.note(0, [5, 6, 5])
    assert index.counts(3) == (2, 1)
    assert index.counts(7) == (2 + 4, 1 + 4)


def new_store(ids: Sequence[int] = (), max_pages: int = 100) -> NumpyBdpa:
    store = NumpyBdpa(GROUP, CONFIG, NumpyBdpaPages(GROUP, CONFIG, max_pages, HostMemory()))
    store.note(0, ids)
    return store


def random_kv(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.random.default_rng(seed).standard_normal((2, 2, count, 32)).astype(np.float32)
    return k, v


def test_what_is_rebuilt_is_near_what_was_stored() -> None:
    """First occurrences but for f16, later ones within half a step of the largest difference."""
    ids = np.random.default_rng(1).integers(0, 60, 150).tolist()
    store = new_store(ids)
    kv = random_kv(150)
    for start, end in ((0, 70), (70, 71), (71, 150)):
        store.ensure(end, start)
        store.append(0, start, kv[0][:, start:end], kv[1][:, start:end])
    first = np.array([slot == NO_SLOT for _, slot in plain_entries(ids)])
    for found, stored in zip(store.view(0, 0, 150), kv, strict=True):
        assert np.abs(found - stored)[:, first].max() < 4e-3
        # A difference is at most twice the largest value, a turned pair 1.5 times as large.
        assert np.abs(found - stored)[:, ~first].max() < 3 * np.abs(stored).max() / 127
        assert np.abs(found - stored)[:, ~first].max() > 4e-3
    for part, whole in zip(store.view(0, 33, 90), store.view(0, 0, 150), strict=True):
        np.testing.assert_allclose(part, whole[:, 33:90], atol=1e-6)


def test_the_same_keys_at_another_position_cost_nothing() -> None:
    """Before the rotary embedding they are the same: so the differences are 0."""
    config = replace(CONFIG, layers=(LayerConfig(None, RopeConfig(1e4, 32, True)),))
    pages = NumpyBdpaPages(GROUP, config, 100, HostMemory())
    store = NumpyBdpa(GROUP, config, pages)
    store.note(0, [7] * 40)
    store.ensure(40, 0)
    k, v = random_kv(1)
    turned = store._rotated(np.repeat(k, 40, axis=1), pages.ropes.rows(config.layers[0].rope, 0, 40), True)
    store.append(0, 0, turned, np.repeat(v, 40, axis=1))
    np.testing.assert_allclose(store.view(0, 0, 40)[0], turned, atol=4e-3)
    assert store.stats(40, 512).used_bytes < new_store(range(40)).stats(40, 512).used_bytes


def test_without_ids_nothing_is_stored() -> None:
    store = new_store([1, 2])
    store.ensure(3, 0)
    with pytest.raises(
        LayoutUnavailable, match="bdpa needs the id of every token: of 3 tokens only the first 2"
    ) as caught:
        store.append(0, 0, *random_kv(3))
    assert "\n" not in str(caught.value)
    with pytest.raises(LayoutUnavailable):
        store.note(3, [4])
    with pytest.raises(LayoutUnavailable):
        store.fork(3)


def test_forks_share_pages_until_they_write() -> None:
    ids = [*range(80), *range(40)]
    store = new_store(ids)
    basis, differences = store._pages.basis_pool, store._pages.difference_pool
    kv = random_kv(120)
    store.ensure(120, 0)
    store.append(0, 0, *kv)
    before = store.view(0, 0, 120)
    assert (basis.held, differences.held) == (pages_for(80), pages_for(40))
    other = store.fork(120)
    assert (basis.held, differences.held) == (pages_for(80), pages_for(40))
    for held, token in ((store, 300), (other, 301)):
        held.note(120, [token, token])
        held.ensure(122, 120)
        held.append(0, 120, *random_kv(2, token))
    # Each writes one row and one difference: one of them keeps the page, the other has taken a copy.
    assert (basis.held, differences.held) == (pages_for(80) + 1, pages_for(40) + 1)
    for held in (store, other):
        np.testing.assert_array_equal(held.view(0, 0, 120), before)
    assert not np.array_equal(store.view(0, 120, 122)[0], other.view(0, 120, 122)[0])
    store.close()
    np.testing.assert_array_equal(other.view(0, 0, 120), before)
    other.close()
    assert (basis.held, differences.held) == (0, 0)


def test_too_few_pages_take_nothing() -> None:
    store = new_store([*range(40), *range(40), *range(40)], max_pages=2)
    store.ensure(80, 0)
    basis, differences = store._pages.basis_pool, store._pages.difference_pool
    store.note(80, [*range(100, 110), *([0] * 40)])
    with pytest.raises(DoesNotFit):
        store.ensure(130, 80)
    assert (basis.held, differences.held) == (2, 2)
    assert store.missing(130, 80)
    store.truncate(0, 80)
    assert (basis.held, differences.held) == (0, 0)


@pytest.mark.parametrize(
    ("head_dim", "rope", "reason"),
    [
        (18, RopeConfig(1e4, 16, True), "head dimension of test, 18, is not a multiple"),
        (32, RopeConfig(1e4, 20, False), "8 columns at a time; test rotates 20"),
        (32, RopeConfig(1e4, 18, True), "4 columns at a time; test rotates 18"),
    ],
)
def test_shapes_that_it_cannot_pack_are_refused(head_dim: int, rope: RopeConfig, reason: str) -> None:
    config = replace(CONFIG, head_dim=head_dim, layers=(LayerConfig(None, rope),))
    with pytest.raises(LayoutUnavailable, match=reason) as caught:
        choose_layouts(config, "bdpa")
    assert "\n" not in str(caught.value)


def test_it_takes_less_the_more_ids_come_again(tiny: Tiny) -> None:
    executor = open_numpy(model(tiny, "llama"), kv="bdpa")
    used = []
    for different in (8, 64, 150):
        cache = executor.new_cache(200)
        executor.forward(cache, [index % different for index in range(150)], "none")
        stats = cache.stats()
        assert stats.used_bytes <= stats.allocated_bytes
        used.append(stats.used_bytes)
    assert used == sorted(used)
    c = executor.config
    row, difference = 2 * c.kv_size * 2, 2 * c.kv_size + 4 * c.num_kv_heads
    assert used[0] == c.num_layers * (8 * row + 142 * difference) + 150 * 8


def test_without_fusing_the_cache_is_the_same(tiny: Tiny) -> None:
    """Then an op of its own rotates the keys before they reach the cache."""
    ids = [index % 50 for index in range(120)]
    caches = []
    for fused in (True, False):
        executor = open_numpy(model(tiny, "llama"), fused=fused, kv="bdpa")
        caches.append(executor.new_cache(120))
        executor.forward(caches[-1], ids, "none")
    for fused_kv, plain in zip(*(cache.store(3).view(3, 0, 120) for cache in caches), strict=True):
        assert relative(plain, fused_kv) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_webgpu_follows_numpy(tiny: Tiny, family: str) -> None:
    """Steps of many sizes, a fork that goes on by itself, and going back."""
    ids = np.random.default_rng(2).integers(0, 90, 300).tolist()
    gpu, host = open_webgpu(model(tiny, family), kv="bdpa"), open_numpy(model(tiny, family), kv="bdpa")
    caches = [gpu.new_cache(400), host.new_cache(400)]

    def step(caches: Sequence[Any], start: int, end: int) -> None:
        found, expected = (
            executor.forward(cache, ids[start:end], "last") for executor, cache in zip((gpu, host), caches, strict=True)
        )
        # A number on the border between two steps may go to either, which the layers behind it see.
        assert relative(found, expected) < 0.02

    for start, end in ((0, 1), (1, 64), (64, 65), (65, 100)):
        step(caches, start, end)
    forks = [cache.fork() for cache in caches]
    step(forks, 100, 150)
    step(caches, 120, 180)
    for cache in caches:
        cache.truncate(110)
    step(caches, 200, 264)
    step(forks, 150, 151)
    gpu.close()


@pytest.mark.gpu
def test_tokens_drawn_on_the_gpu_are_indexed_there(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several steps in flight the index is that which the host makes afterwards, also after taking back."""
    monkeypatch.setattr("inference.gpu.executor.SOFTWARE_IN_FLIGHT", InFlight(groups=2, steps=2, seconds=60))
    executor = open_webgpu(model(tiny, "llama"), kv="bdpa")
    cache = executor.new_cache(200)
    held: list[int] = []
    for prompt, count in (([3, 4, 3, 5], 60), ([9, 9, 3], 40)):
        stream = executor.stream(cache, prompt, SampleRequest(Sampling(temperature=2.0), 1, ()))
        found = [next(stream).id for _ in range(count)]
        stream.close()
        held += [*prompt, *found[:-1]]
        assert cache.length > len(held), "no step was in flight"
        cache.truncate(len(held) - 10)
        del held[-10:]
        (store,) = cache.stores
        raw = executor._gpu.queue.read_buffer(store.buffers()[Binding("kv", "0.entries")])
        entries = np.frombuffer(raw, np.uint32).reshape(-1, 2)[pages_for(200) :][: len(held)]
        assert [tuple(entry) for entry in entries.tolist()] == plain_entries(held)
    executor.close()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_six_thousand_tokens(tiny: Tiny, family: str) -> None:
    """NumPy's state is written into the GPU's buffers; then both decode the same tokens."""
    tokens, more = 6000, 8
    ids = np.random.default_rng(3).integers(0, 512, tokens + more).tolist()
    host, gpu = open_numpy(model(tiny, family), kv="bdpa"), open_webgpu(model(tiny, family), kv="bdpa")
    host_cache, gpu_cache = host.new_cache(tokens + more), gpu.new_cache(tokens + more)
    for start in range(0, tokens, host.chunk):
        host.forward(host_cache, ids[start : min(start + host.chunk, tokens)], "none")
    write_state(host_cache, gpu_cache, gpu, ids[:tokens])
    for position in range(tokens, tokens + more):
        expected = host.forward(host_cache, [ids[position]], "last")
        found = gpu.forward(gpu_cache, [ids[position]], "last")
        assert expected is not None and found is not None
        assert relative(found, expected) < 2e-3
    gpu.close()


def write_state(source: Any, target: Any, gpu: Any, ids: list[int]) -> None:
    """Make the GPU's cache hold what NumPy's does."""
    target.note(0, ids)
    target.ensure(len(ids))
    (host,), (store,) = source.stores, target.stores
    held, pages = host._held, host._pages
    assert held.basis.pages == store._held.basis.pages

    def write(name: str, data: np.ndarray, at: int = 0) -> None:
        gpu._gpu.queue.write_buffer(store.buffers()[Binding("kv", name)], at, np.ascontiguousarray(data))

    for layer in host.group.layers:
        write(f"{layer}.basis", pages.basis.tokens(layer)[: len(held.basis.pages) * PAGE_TOKENS])
        write(f"{layer}.differences", pages.differences.tokens(layer)[: len(held.differences.pages) * PAGE_TOKENS])
    entries = held.index.entries(0, len(ids))
    write("0.entries", entries.astype(np.uint32), pages_for(target.context) * 8)
    row_ids = np.array(ids)[entries[:, 1] == NO_SLOT]
    rows = np.zeros(gpu.config.vocab_size, np.uint32)
    rows[row_ids] = np.arange(len(row_ids))
    write("0.known", row_ids.astype(np.uint32))
    write("0.known", rows, target.context * 4)
    target.length = len(ids)
