"""Rings on Gemma 3 270M: 15 of its 18 layers have a window of 512, which the golden `long` case goes past."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine
from inference.kv.choose import choose_layouts
from inference.kv.factory import GpuCaches, NumpyCaches
from inference.kv.gpu_store import GpuMemory
from tests.inference.cpu.test_golden import FLOAT64_TOLERANCE, TOLERANCE
from tests.inference.opening import open_store

Golden = Callable[[str], Any]
CONTEXT, CHUNK, IN_FLIGHT = 8192, 256, 4


@pytest.mark.parametrize(
    ("kv", "count"),
    [
        ("auto", 25),
        pytest.param("auto", 48, marks=pytest.mark.slow),
        pytest.param("contiguous", 48, marks=pytest.mark.slow),
    ],
)
def test_a_prompt_and_its_continuation_past_the_window(gemma3_path: Path, golden: Golden, kv: str, count: int) -> None:
    """707 tokens in chunks, then `count` one at a time, within the tolerances that whole prompts have."""
    (case,) = (case for case in golden("gemma3.json")["cases"] if case["id"] == "long")
    arrays, float64 = golden("gemma3.npz"), golden("gemma3.np64.npz")
    continuation = case["f32"]["ids"][:count]
    engine = Engine.open(gemma3_path, device="cpu", kv=kv)
    sequence = engine.sequence()
    logits = sequence.append(case["ids"])
    worst = float(np.abs(logits[float64["long/top_ids"]] - float64["long/top_vals"]).max())
    assert worst <= FLOAT64_TOLERANCE["gemma3"], f"float64: {worst}"
    compared = 0
    for step, token in enumerate(continuation):
        if f"f32/long/{step}/top_ids" in arrays:
            top_ids, top_values = (arrays[f"f32/long/{step}/{part}"] for part in ("top_ids", "top_vals"))
            worst = float(np.abs(logits[top_ids] - top_values).max())
            assert worst <= TOLERANCE["gemma3"], f"step {step}: {worst}"
            compared += 1
        logits = sequence.append([token])
    assert compared >= 3 and len(sequence) == len(case["ids"]) + count == 707 + count
    stats = sequence.kv_stats()
    held = {group.layout: group.held_tokens for group in stats.groups}
    assert held == ({"contiguous": 707 + count} if kv == "contiguous" else {"ring": 707 + count, "paged": 707 + count})
    engine.close()


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_auto_takes_a_quarter_of_contiguous(gemma3_path: Path, device: str) -> None:
    """At a context of 8,192, with the chunk of a real GPU."""
    config, _ = open_store(gemma3_path)
    capacity = {}
    for kv in ("auto", "contiguous"):
        groups = choose_layouts(config, kv)
        if device == "cpu":
            cache: Any = NumpyCaches(config, groups, CHUNK).new(CONTEXT)
        else:
            memory = GpuMemory(None, None, "f16", CHUNK, IN_FLIGHT, 2**31 - 4)  # type: ignore[arg-type]
            cache = GpuCaches(config, groups, memory).new(CONTEXT)
        capacity[kv] = cache.stats().capacity_bytes
    assert capacity["contiguous"] == CONTEXT * 18 * 2 * 256 * (4 if device == "cpu" else 2)
    assert capacity["auto"] <= 0.25 * capacity["contiguous"]
