"""A step that takes a token of several sequences gives each the logits that it has alone, whatever came before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from inference import Engine
from inference.errors import BatchRefused
from inference.sequence import Sequence
from tests.conftest import DATA
from tests.inference.replies import CLOSE

Device = Literal["cpu", "webgpu"]
Change = tuple[Literal["step", "join", "leave", "fork"], int, int]
"""What happens, to which sequence of those that there are, and how many steps or tokens."""

CONTEXT = 160
MOST = 9
EXAMPLES = {"cpu": 12, "webgpu": 2}

HISTORY: list[Change] = [("fork", 1, 0), ("step", 0, 3), ("leave", 0, 0), ("join", 0, 70), ("step", 0, 2)]

FIRST = st.lists(st.integers(0, 70), min_size=1, max_size=MOST)
CHANGE = st.one_of(
    st.tuples(st.just("step"), st.just(0), st.integers(1, 4)),
    st.tuples(st.just("join"), st.just(0), st.integers(0, 70)),
    st.tuples(st.sampled_from(["leave", "fork"]), st.integers(0, MOST - 1), st.just(0)),
)


@cache
def opened(family: str, device: Device, *kernels: str) -> Engine:
    path = DATA / "tiny" / family / "gguf" / "model-f16.gguf"
    return Engine.open(path, device=device, dtype="f32", context=CONTEXT, kernels=kernels)


def begun(engine: Engine, rng: np.random.Generator, length: int, **options: Any) -> Sequence:
    sequence = engine.sequence(**options)
    sequence.set_ids(rng.integers(0, engine.info.vocab_size, length).tolist())
    return sequence


def check(engine: Engine, lengths: list[int], changes: list[Change], seed: int, **options: Any) -> None:
    """Run this history; compare the logits of all batched steps with those of the same ids alone."""
    rng = np.random.default_rng(seed)
    present = [begun(engine, rng, length, **options) for length in lengths]
    # By the ids that a sequence held: the logits after the last.
    found: dict[tuple[int, ...], np.ndarray] = {}
    ended: list[tuple[int, ...]] = []

    def step() -> None:
        ids = rng.integers(0, engine.info.vocab_size, len(present)).tolist()
        logits = engine.executor.forward_many([sequence.cache for sequence in present], ids)
        assert logits.shape == (len(present), engine.info.vocab_size) and logits.dtype == np.float32
        for sequence, token, row in zip(present, ids, logits, strict=True):
            sequence.settle([token])
            found[sequence.token_ids] = row

    for what, which, count in [*changes, ("step", 0, 1)]:
        match what:
            case "step":
                for _ in range(count):
                    step()
            case "join" if len(present) < MOST:
                present.append(begun(engine, rng, count, **options))
            case "fork" if len(present) < MOST:
                present.append(present[which % len(present)].fork())
            case "leave" if len(present) > 1:
                with closing(present.pop(which % len(present))) as gone:
                    ended.append(gone.token_ids)
    for sequence in present:
        ended.append(sequence.token_ids)
        sequence.close()
    for ids in ended:
        positions = [at for at in range(len(ids)) if ids[: at + 1] in found]
        if positions:
            alone = engine.logits(ids, positions)
            together = np.stack([found[ids[: at + 1]] for at in positions])
            np.testing.assert_allclose(together, alone, atol=CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_each_sequence_has_the_logits_it_has_alone(family: str, device: Device) -> None:
    """Gemma's layers with a window keep rings, the others pages; rings go round, pages are shared by forks."""
    engine = opened(family, device)

    @settings(max_examples=EXAMPLES[device], deadline=None, suppress_health_check=list(HealthCheck))
    @given(FIRST, st.lists(CHANGE, max_size=8), st.integers(0, 2**32))
    def run(lengths: list[int], changes: list[Change], seed: int) -> None:
        check(engine, lengths, changes, seed)

    with threadpool_limits(1):
        run()


@pytest.mark.parametrize("layout", ["contiguous", "tiered"])
def test_other_layouts_on_the_cpu(layout: str) -> None:
    check(opened("llama", "cpu"), [40, 3, 0], HISTORY, seed=5, kv=layout)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["decode_split", "decode_streaming"])
def test_the_other_kernels(kernel: str) -> None:
    """Those that a software adapter would not choose."""
    engine = opened("llama", "webgpu", f"prefer:{kernel}")
    if kernel not in {row.variant for row in engine.plan()}:
        pytest.skip("the adapter has no subgroups")
    check(engine, [70, 3, 0], HISTORY, seed=6)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["contiguous", "tiered", "bdpa"])
def test_layouts_that_webgpu_refuses(layout: str) -> None:
    engine = opened("llama", "webgpu")
    sequences = [engine.sequence(kv=layout) for _ in range(2)]
    with pytest.raises(BatchRefused, match=f"with the {layout} layout, where each has buffers of its own; use --kv"):
        engine.generate_many([[1], [2]], sequences=sequences)


@pytest.mark.gpu
def test_sequences_of_another_engine_are_refused(tiny: Callable[[str], Path]) -> None:
    one = opened("llama", "webgpu")
    other = Engine.open(tiny("llama") / "gguf" / "model-f16.gguf", device="webgpu", dtype="f32")
    with closing(other), pytest.raises(BatchRefused, match="one engine and one context: number 2 has others"):
        one.executor.forward_many([one.sequence().cache, other.sequence().cache], [1, 2])
    with pytest.raises(BatchRefused, match="one engine and one context"):
        one.executor.forward_many([one.sequence().cache, one.executor.new_cache(CONTEXT - 1)], [1, 2])
