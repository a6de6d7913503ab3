"""The WebGPU executor on the real models, against the NumPy executor and llama.cpp's greedy text.

On a software adapter a token takes about a second, so that most of this is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.events import Token
from tests.inference.opening import open_webgpu

pytestmark = pytest.mark.gpu

Golden = Callable[[str], Any]
CLOSE = 0.01
GREEDY = Sampling(temperature=0)
PROMPTS = ["chat_single", "story", "short"]
"""Three prompts of SmolLM2, 42, 9 and 5 tokens long."""


def opened(path: Path, **options: Any) -> Iterator[Engine]:
    engine = Engine.open(path, **options)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def smollm2_cpu(smollm2_path: Path) -> Iterator[Engine]:
    yield from opened(smollm2_path, device="cpu")


@pytest.fixture(scope="module")
def smollm2_gpu(smollm2_path: Path) -> Iterator[Engine]:
    yield from opened(smollm2_path, device="webgpu", dtype="f32")


def case_of(golden: Golden, model: str, case_id: str) -> dict[str, Any]:
    (case,) = (case for case in golden(f"{model}.json")["cases"] if case["id"] == case_id)
    return case


def sampled(engine: Engine, ids: Sequence[int], count: int) -> list[int]:
    return [event.id for event in engine.generate(ids, GREEDY, max_tokens=count) if isinstance(event, Token)]


@pytest.mark.parametrize(("model", "most"), [("smollm2", 7), ("gemma3", 9)])
def test_dispatches_a_layer(request: pytest.FixtureRequest, model: str, most: int) -> None:
    executor = open_webgpu(request.getfixturevalue(f"{model}_path"))
    layers: dict[int, int] = {}
    for row in executor.plan_rows("decode"):
        if row.layer is not None:
            layers[row.layer] = layers.get(row.layer, 0) + row.dispatches
    assert len(layers) == executor.config.num_layers
    assert max(layers.values()) <= most
    executor.close()


@pytest.mark.parametrize("case_id", PROMPTS)
def test_smollm2_prompts_as_on_numpy(smollm2_cpu: Engine, smollm2_gpu: Engine, golden: Golden, case_id: str) -> None:
    ids = case_of(golden, "smollm2", case_id)["ids"]
    expected = smollm2_cpu.logits(ids)
    assert np.abs(smollm2_gpu.logits(ids) - expected).max() <= CLOSE


@pytest.mark.parametrize("case_id", ["chat_single", "short"])
def test_smollm2_generates_as_on_numpy(smollm2_cpu: Engine, smollm2_gpu: Engine, golden: Golden, case_id: str) -> None:
    """8 tokens, each fed back: the same as on the CPU, and as llama.cpp's."""
    case = case_of(golden, "smollm2", case_id)
    count = min(8, len(case["f32"]["ids"]) - 1)
    assert min(case["f32"]["margins"][:count]) > 0.05
    assert sampled(smollm2_gpu, case["ids"], count) == case["f32"]["ids"][:count]
    assert sampled(smollm2_cpu, case["ids"], count) == case["f32"]["ids"][:count]


def test_smollm2_with_x_in_fixed_point(smollm2_path: Path, smollm2_cpu: Engine, golden: Golden) -> None:
    """As large matrices are multiplied on GPUs; this model's are small, so it is asked for."""
    case = case_of(golden, "smollm2", "short")
    engine = Engine.open(smollm2_path, device="webgpu", dtype="f32", kernels=["prefer:gemv_packed"])
    assert {row.variant for row in engine.plan("decode") if row.kind in ("matmul", "lm_head")} == {"gemv_packed"}
    assert np.abs(engine.logits(case["ids"]) - smollm2_cpu.logits(case["ids"])).max() <= CLOSE
    assert sampled(engine, case["ids"], 7) == case["f32"]["ids"][:7]
    engine.close()


@pytest.mark.slow
def test_smollm2_with_f16_storage_chooses_the_same(smollm2_path: Path, golden: Golden) -> None:
    """Top-1 at generated positions whose reference margin exceeds 0.3: at least 95% are the reference's."""
    engine = Engine.open(smollm2_path, device="webgpu", dtype="f16")
    same: list[bool] = []
    for case_id in ("chat_multi", "chat_single", "story", "short", "code"):
        case = case_of(golden, "smollm2", case_id)
        reference = case["f32"]
        first = case["n_prompt"] - 1
        ids = [*case["ids"], *reference["ids"][:-1]]
        chosen = engine.logits(ids, range(first, first + len(reference["ids"]))).argmax(axis=1)
        clear = np.array(reference["margins"]) > 0.3
        same += (chosen == np.array(reference["ids"]))[clear].tolist()
    assert len(same) >= 60
    assert np.mean(same) >= 0.95
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("case_id", ["short", "story"])
def test_gemma3_as_on_numpy(gemma3_path: Path, golden: Golden, case_id: str) -> None:
    """The embedding is larger than the 128 MiB that some devices bind at once."""
    case = case_of(golden, "gemma3", case_id)
    cpu = Engine.open(gemma3_path, device="cpu")
    expected = cpu.logits(case["ids"])
    cpu.close()
    gpu = Engine.open(gemma3_path, device="webgpu", dtype="f32")
    assert np.abs(gpu.logits(case["ids"]) - expected).max() <= CLOSE
    assert sampled(gpu, case["ids"], 3) == case["f32"]["ids"][:3]
    gpu.close()


@pytest.mark.slow
def test_gemma3_with_f16_storage_stays_finite(gemma3_path: Path, golden: Golden) -> None:
    """Its residual stream passes what f16 can hold."""
    case = case_of(golden, "gemma3", "story")
    engine = Engine.open(gemma3_path, device="webgpu", dtype="f16")
    logits = engine.logits(case["ids"], [len(case["ids"]) - 1])[0]
    arrays = golden("gemma3.np64.npz")
    assert np.abs(logits[arrays["story/top_ids"]] - arrays["story/top_vals"]).max() < 0.5
    assert logits.argmax() == arrays["story/top_ids"][0]
    engine.close()
