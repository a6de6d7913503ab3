"""The WebGPU executor on tiny models: decoding, weights of every format, split bindings, both ways of encoding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from inference.executor import SampleRequest
from inference.gpu import executor as gpu_executor
from inference.gpu.device import DeviceCaps
from inference.gpu.executor import WebGpuExecutor
from inference.gpu.queue import InFlight
from inference.sampling import Sampling
from tests.inference.gguf_variants import rewrite
from tests.inference.opening import open_numpy, open_webgpu, run_ids
from tests.inference.tiny_golden import TOLERANCE, golden

pytestmark = pytest.mark.gpu

Tiny = Callable[[str], Path]
FAMILIES = ["llama", "gemma3_text"]
CLOSE = 1e-4
IDS = [1, 17, 300, 511, 8, 8, 90, 401, 33]
GROUPED = InFlight(groups=3, steps=3, seconds=60)
"""Three steps in each submission, however long they take here."""
QuantType = gguf.GGMLQuantizationType


def model(tiny: Tiny, family: str) -> Path:
    return tiny(family) / "gguf" / "model-f16.gguf"


def sampled(executor: WebGpuExecutor, ids: list[int], count: int, sampling: Sampling) -> list[int]:
    kv = executor.new_cache(len(ids) + count)
    stream = executor.stream(kv, ids, SampleRequest(sampling, 3, tuple(ids)))
    found = [next(stream).id for _ in range(count)]
    stream.close()
    kv.close()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_passes_the_window_as_well(tiny: Tiny, family: str) -> None:
    """One row at a time, from before the window is full to past it."""
    reference = golden(family)
    ids = reference["ids_150"].tolist()
    executor = open_webgpu(model(tiny, family))
    kv = executor.new_cache(150)
    executor.forward(kv, ids[:20], "none")
    for position in range(20, 60):
        logits = executor.forward(kv, [ids[position]], "last")
        assert logits is not None
        assert np.abs(logits[reference["cols"]] - reference["logits_150"][position]).max() <= TOLERANCE
    executor.close()


KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F32", "BF16"]
"""`mixed` has all of them, and each by itself is slow but for one with integers and one without."""


@pytest.mark.parametrize(
    "kind",
    ["mixed", *(kind if kind in ("Q4_1", "F32") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS)],
)
def test_weights_of_every_format(tiny: Tiny, kind: str, tmp_path: Path) -> None:
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    kinds = [QuantType[name] for name in KINDS] if kind == "mixed" else [QuantType[kind]] * len(parts)
    types = {f"blk.{layer}.{part}.weight": t for layer in range(4) for part, t in zip(parts, kinds, strict=True)}
    types["token_embd.weight"] = kinds[4]
    path = rewrite(model(tiny, "llama"), tmp_path / "quantised.gguf", types=types)
    expected = run_ids(open_numpy(path), IDS)
    executor = open_webgpu(path)
    np.testing.assert_allclose(run_ids(executor, IDS), expected, atol=CLOSE)
    kv = executor.new_cache(len(IDS))
    for row, token in enumerate(IDS):
        assert expected is not None
        np.testing.assert_allclose(executor.forward(kv, [token], "last"), expected[row], atol=CLOSE)
    formats = {kind.lower()} if kind != "mixed" else {"q8_0", "q5_1"}
    assert formats <= set(executor.memory().weights_by_format)
    executor.close()


@pytest.mark.parametrize(
    ("family", "precision", "max_binding"),
    [
        ("llama", "f16", 16384),
        ("gemma3_text", "q8_0", 8192),
        pytest.param("llama", "q8_0", 8192, marks=pytest.mark.slow),
        pytest.param("gemma3_text", "f16", 16384, marks=pytest.mark.slow),
    ],
)
def test_split_bindings_change_nothing(
    tiny: Tiny, family: str, precision: str, max_binding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device with small bindings: embedding, head, and gated weights in several parts."""
    path = tiny(family) / "gguf" / f"model-{precision}.gguf"
    whole = open_webgpu(path)
    describe = gpu_executor.describe_caps

    def small(*arguments: Any) -> DeviceCaps:
        return replace(describe(*arguments), max_binding=max_binding)

    monkeypatch.setattr(gpu_executor, "describe_caps", small)
    split = open_webgpu(path)
    assert all(buffer.size <= max_binding for buffer in split.programs.weights.buffers.values())
    counts = {row.name: row.dispatches for row in split.plan_rows("decode")}
    assert counts["embedding"] > 1 and counts["lm_head"] > 1 and counts["feed_forward.gate_up"] > 1
    np.testing.assert_array_equal(run_ids(split, IDS), run_ids(whole, IDS))
    for token in (0, 63, 64, 127, 128, 300, 511):  # both sides of the parts' borders
        np.testing.assert_array_equal(run_ids(split, [token], "last"), run_ids(whole, [token], "last"))
    greedy = Sampling(temperature=0)
    assert sampled(split, IDS, 6, greedy) == sampled(whole, IDS, 6, greedy)
    for executor in (whole, split):
        executor.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_both_encoders_give_identical_results(tiny: Tiny, family: str) -> None:
    raw, public = (open_webgpu(model(tiny, family), raw_encoding=allowed) for allowed in (True, False))
    assert raw._encoder.raw and not public._encoder.raw
    np.testing.assert_array_equal(run_ids(raw, IDS), run_ids(public, IDS))
    warm = Sampling(temperature=1.3, top_k=30)
    assert sampled(raw, IDS, 10, warm) == sampled(public, IDS, 10, warm)
    for executor in (raw, public):
        executor.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_submitted_together_sample_the_same(tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end of the context, which a group does not fill, and over pages that are taken in the middle of one."""
    context = 75
    request = SampleRequest(Sampling(temperature=0.9, repetition=1.2), 3, tuple(IDS))
    found = []
    for in_flight in (InFlight(groups=1, steps=1), GROUPED):
        monkeypatch.setattr(gpu_executor, "SOFTWARE_IN_FLIGHT", in_flight)
        executor = open_webgpu(model(tiny, family))
        kv = executor.new_cache(context)
        for count in (20, None):  # the first time left early, with steps in flight
            with closing(executor.stream(kv, IDS, request)) as stream:
                ids = [sampled.id for sampled in islice(stream, count)]
            assert len(IDS) + len(ids) - 1 <= kv.length <= len(IDS) + len(ids) - 1 + in_flight.depth
            found.append(ids)
            kv.truncate(0)
        assert len(ids) == context - len(IDS) + 1 and executor.step_cost().finish_us > 0
        executor.close()
    assert found[:2] == found[2:] and found[0] == found[1][:20]


def test_batched_steps_submitted_together_sample_the_same(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps that have begun give their results once no more are wanted, also those of a group not filled."""
    requests = [SampleRequest(Sampling(temperature=0.9), seed, ()) for seed in range(3)]
    found = []
    for in_flight in (InFlight(groups=1, steps=1), GROUPED):
        monkeypatch.setattr(gpu_executor, "SOFTWARE_IN_FLIGHT", in_flight)
        executor = open_webgpu(model(tiny, "llama"))
        caches = [executor.new_cache(60) for _ in requests]
        steps = executor.stream_many(caches, IDS[:3], requests, partial(next, iter([True] * 40), False))
        ids = [[sampled.id for sampled in step] for step in steps]
        assert len(ids) == 40 and {cache.length for cache in caches} == {40}
        found.append(ids)
        executor.close()
    assert found[0] == found[1]


def test_the_logits_of_steps_of_any_size(tiny: Tiny) -> None:
    """Every bucket of rows, full and not."""
    executor = open_webgpu(model(tiny, "llama"))
    ids = [(7 * i) % 500 for i in range(64)]
    expected = run_ids(open_numpy(model(tiny, "llama")), ids)
    assert expected is not None
    for size in (1, 2, 7, 8, 9, 32, 33, 63, 64):
        logits = run_ids(executor, ids[:size])
        np.testing.assert_allclose(logits, expected[:size], atol=CLOSE)
        np.testing.assert_allclose(run_ids(executor, ids[:size], "last"), expected[size - 1], atol=CLOSE)
    executor.close()


def test_memory_is_counted_by_purpose(tiny: Tiny) -> None:
    executor = open_webgpu(tiny("llama") / "gguf" / "model-q8_0.gguf", kv="contiguous")
    memory = executor.memory()
    c = executor.config
    matrices = c.vocab_size * 64 + c.num_layers * ((c.q_size + 2 * c.kv_size) * 64 + c.q_size * 64 + 3 * 64 * 128)
    norms = (2 * c.num_layers + 1) * 64
    # 32 weights of 8 bits share a scale of 16; a tied head is there once.
    assert memory.weights_by_format == {"q8_0": matrices * 34 // 32, "f32": norms * 4}
    assert memory.weights_bytes == sum(memory.weights_by_format.values())
    assert memory.kv_bytes == 0 and memory.scratch_bytes > 0 and memory.staging_bytes > 0
    kv = executor.new_cache(100)
    executor.forward(kv, IDS, "none")
    assert executor.memory().kv_bytes == kv.stats().allocated_bytes == 100 * 2 * c.num_layers * c.kv_size * 4
    fork = kv.fork()
    assert executor.memory().kv_bytes == 2 * kv.stats().allocated_bytes
    for held in (kv, fork):
        held.close()
    after = executor.memory()
    assert after.kv_bytes == 0 and after.peak_bytes >= after.weights_bytes + 2 * 100 * 2 * c.num_layers * c.kv_size * 4
    assert "max-storage-buffer-binding-size" in after.limits
    executor.close()


def test_the_cost_of_steps_is_measured(tiny: Tiny) -> None:
    executor = open_webgpu(model(tiny, "llama"))
    sampled(executor, IDS, 8, Sampling(temperature=0))
    cost = executor.step_cost()
    assert cost.dispatches == sum(row.dispatches for row in executor.plan_rows("decode"))
    assert cost.encode_us > 0 and cost.submit_us > 0 and cost.wait_us > 0
    assert 0 < cost.encode_us_per_dispatch < 1000
    executor.close()
