"""The map of a cache says what its layout holds where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine
from inference.events import KV_STATES, Stats
from inference.kv.choose import choose_layouts
from inference.kv.factory import NumpyCaches
from inference.kv.layout import KvCache
from inference.kv.map import kv_map
from inference.kv.names import LAYOUTS
from inference.models.config import ModelConfig
from inference.sampling import Sampling
from tests.conftest import DATA
from tests.inference.opening import open_store

CHUNK = 8
HOT = 16


def config_of(family: str) -> ModelConfig:
    return open_store(DATA / "tiny" / family / "gguf" / "model-f16.gguf")[0]


class Cache:
    """A cache of zeros, filled step by step; hot tiers hold HOT tokens."""

    def __init__(self, family: str, layout: str, context: int = 200) -> None:
        self.config = config_of(family)
        groups = [replace(group, hot=HOT if group.hot else 0) for group in choose_layouts(self.config, layout)]
        self.kv: KvCache[Any] = NumpyCaches(self.config, groups, CHUNK).new(context)

    def append(self, ids: Sequence[int]) -> None:
        shape = (self.config.num_kv_heads, 1, self.config.head_dim)
        for start in range(0, len(ids), CHUNK):
            step = ids[start : start + CHUNK]
            self.kv.note(self.kv.length, step)
            self.kv.ensure(self.kv.length + len(step))
            self.kv.begin()
            for layer in range(self.config.num_layers):
                rows = np.zeros((shape[0], len(step), shape[2]), np.float32)
                self.kv.store(layer).append(layer, self.kv.length, rows, rows)
            self.kv.length += len(step)

    def cells(self) -> list[str]:
        return [group.cells for group in kv_map(self.kv, self.config)]


def test_contiguous_shows_what_is_kept_and_what_is_free() -> None:
    cache = Cache("llama", "contiguous")
    assert cache.cells() == [""]
    cache.append(range(10))
    assert cache.cells() == ["k" * 10 + "f" * 190]


def test_layers_with_a_window_are_apart_from_the_others() -> None:
    cache = Cache("gemma3_text", "contiguous")
    cache.append(range(50))
    local, whole = kv_map(cache.kv, cache.config)
    assert (local.window, local.layers) == (32, (0, 1, 2, 3, 4, 6, 7)) and (whole.window, whole.layers) == (None, (5,))
    # The next query, at position 50, sees positions 19 to 49 and itself.
    assert local.cells == "o" * 19 + "k" * 31 + "f" * 150
    assert whole.cells == "k" * 50 + "f" * 150
    (stats,) = cache.kv.stats().groups
    assert (local.used_bytes, whole.used_bytes) == (stats.used_bytes * 7 // 8, stats.used_bytes // 8)
    assert local.allocated_bytes + whole.allocated_bytes == stats.allocated_bytes


def test_pages_that_forks_hold_are_shared_until_they_are_written() -> None:
    cache = Cache("llama", "paged")
    cache.append(range(70))
    assert cache.cells() == ["k" * 70 + "f" * 26]
    fork = cache.kv.fork()
    assert cache.cells() == ["s" * 70 + "f" * 26]
    cache.append([1])
    # The page that was written is a copy now.
    assert cache.cells() == ["s" * 64 + "k" * 7 + "f" * 25]
    fork.close()
    # The page that only the fork held is free for whoever comes.
    assert cache.cells() == ["k" * 71 + "f" * (25 + 32)]


def test_a_ring_goes_round() -> None:
    cache = Cache("gemma3_text", "ring")
    cache.append(range(30))
    ring, whole = kv_map(cache.kv, cache.config)
    capacity = 32 + CHUNK - 1
    assert ring.ring and ring.cells == "k" * 30 + "f" * (capacity - 30) and ring.full == capacity
    assert not whole.ring and whole.full == 200
    cache.append(range(10))
    # Position 39 lies in slot 0, positions 1 to 8 are behind the window of the next query, at 40.
    assert cache.cells()[0] == "k" + "o" * 8 + "k" * 30
    cache.kv.truncate(39)
    # Slot 0 held position 0 before; now neither.
    assert cache.cells()[0] == "f" + "o" * 7 + "k" * 31


@pytest.mark.parametrize(("layout", "letter"), [("tiered", "c"), ("tiered-int8", "q"), ("tiered-int4", "q")])
def test_what_leaves_the_hot_tier_is_cold(layout: str, letter: str) -> None:
    cache = Cache("llama", layout)
    cache.append(range(HOT))
    assert cache.cells() == ["h" * HOT + "f" * CHUNK]
    cache.append(range(24))
    # The last step began behind 32 tokens, of which HOT stayed hot.
    assert cache.cells() == [letter * 16 + "h" * 24 + "f" * 16]
    fork = cache.kv.fork()
    assert cache.cells() == ["s" * 16 + "h" * 24 + "f" * 16]
    fork.close()


def test_bdpa_shows_which_tokens_are_basis_rows() -> None:
    cache = Cache("llama", "bdpa")
    cache.append([5, 6, 5, 7, 5, 6])
    assert cache.cells() == ["bbdbdd" + "f" * (32 - 3 + 32 - 3)]
    fork = cache.kv.fork()
    assert cache.cells() == ["ssssss" + "f" * 58]
    fork.close()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_token_held_has_its_cell(family: str, layout: str) -> None:
    if (family, layout) == ("llama", "ring"):
        return
    cache = Cache(family, layout)
    random = np.random.default_rng(0)
    for _ in range(12):
        cache.append(random.integers(0, 40, random.integers(1, 30)).tolist() if cache.kv.length < 170 else [1])
        if random.random() < 0.4:
            cache.kv.truncate(int(random.integers(cache.kv.length - 5, cache.kv.length)))
        groups = kv_map(cache.kv, cache.config)
        assert sorted(layer for group in groups for layer in group.layers) == list(range(cache.config.num_layers))
        for group in groups:
            assert set(group.cells) <= set(KV_STATES)
            held = len(group.cells) - group.cells.count("f")
            assert held == cache.kv.length or (group.ring and min(cache.kv.length, 32) <= held <= group.full)


@pytest.mark.parametrize("device", ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("layout", ["auto", *LAYOUTS])
def test_a_reply_brings_the_map_of_what_is_held(device: Any, layout: str, tiny: Any) -> None:
    path: Path = tiny("gemma3_text") / "gguf" / "model-f16.gguf"
    engine = Engine.open(path, device=device, kv=layout, dtype="f32", context=256)
    sequence = engine.sequence()
    *_, stats, _ = engine.generate(list(range(60)), Sampling(temperature=0), max_tokens=3, sequence=sequence)
    assert isinstance(stats, Stats)
    assert stats.kv_map == sequence.kv_map()
    for group in stats.kv_map:
        held = len(group.cells) - group.cells.count("f")
        assert held == (62 if not group.ring else min(62, group.full))
        if group.layout == "bdpa":
            assert group.cells[31:60] == "b" * 29
        if group.window is not None:
            assert group.cells.count("o") == 62 - 32 + 1
    engine.close()
