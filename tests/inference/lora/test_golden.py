"""Adapters on the tiny models, against PEFT's logits, on both devices."""

from pathlib import Path

import numpy as np
import pytest

from inference.executor import Executor
from inference.lora.adapter_set import AdapterSet, AppliedAdapter
from inference.lora.read import read_adapter
from tests.inference.opening import open_numpy, open_webgpu
from tests.inference.tiny_golden import TOLERANCE, arrays, folder, golden

FAMILIES = ("llama", "qwen3", "gemma3_text")
PREFILLED = 20


def sets(family: str) -> dict[str, list[tuple[str, float]]]:
    """The golden arrays by name, and the adapters with the strengths that gave them."""
    both = {"both": [("adapter1", 1.0), ("adapter2", 1.0)]} if family == "llama" else {}
    return {
        "adapter1": [("adapter1", 1.0)],
        "adapter1_half": [("adapter1", 0.5)],
        "adapter2": [("adapter2", 1.0)],
    } | both


def logits(executor: Executor, family: str) -> np.ndarray:
    """Logits of `ids_33` (33, V): the first of them in one step, the rest one by one."""
    ids = golden(family)["ids_33"].tolist()
    cache = executor.new_cache(len(ids))
    rows = [executor.forward(cache, ids[:PREFILLED], "all")]
    rows += [executor.forward(cache, [token], "last")[None] for token in ids[PREFILLED:]]
    cache.close()
    return np.concatenate(rows)


def adapter_set(executor: Executor, family: str, names: list[tuple[str, float]]) -> AdapterSet:
    adapters = [(read_adapter(folder(family) / "lora" / name, executor.config), strength) for name, strength in names]
    return AdapterSet(executor.config, tuple(AppliedAdapter(adapter, strength) for adapter, strength in adapters))


def check(executor: Executor, family: str) -> None:
    """Every golden set, one after another on one executor; then dropped, which must equal never loaded."""
    reference = arrays(folder(family) / "lora" / "golden.npz")
    before, plan = logits(executor, family), executor.plan(1, "last")
    for name, adapters in sets(family).items():
        executor.set_adapters(adapter_set(executor, family, adapters))
        worst = np.abs(logits(executor, family)[:, reference["cols"]] - reference[name]).max()
        assert worst <= TOLERANCE, f"{family} with {name}: logits differ by {worst:.2g}"
        assert np.abs(reference[name] - before[:, reference["cols"]]).max() > 50 * TOLERANCE
    again = logits(executor, family)
    executor.set_adapters(AdapterSet(executor.config))
    np.testing.assert_array_equal(logits(executor, family), before)
    assert executor.plan(1, "last") == plan
    executor.set_adapters(adapter_set(executor, family, list(sets(family).values())[-1]))
    np.testing.assert_array_equal(logits(executor, family), again)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_numpy(family: str, fused: bool) -> None:
    check(open_numpy(folder(family) / "config.json", fused), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_adapter_on_a_gguf_model(family: str) -> None:
    check(open_numpy(folder(family) / "gguf" / "model-f16.gguf"), family)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_webgpu(family: str) -> None:
    executor = open_webgpu(folder(family) / "config.json")
    check(executor, family)
    executor.close()


@pytest.mark.gpu
def test_a_change_of_strength_keeps_programs_and_memory(tmp_path: Path) -> None:
    executor = open_webgpu(folder("qwen3") / "config.json")
    executor.set_adapters(adapter_set(executor, "qwen3", [("adapter1", 1.0)]))
    full, before, plan = logits(executor, "qwen3"), executor.memory(), executor.plan(1, "last")
    assert before.weights_by_format["adapters f32"] > 0
    assert {row.weight for row in executor.plan_rows("decode") if row.kind == "lora"} == {"f32"}
    executor.set_adapters(adapter_set(executor, "qwen3", [("adapter1", 0.0)]))
    assert executor.plan(1, "last") is plan
    assert executor.memory().weights_by_format == before.weights_by_format
    none = logits(executor, "qwen3")
    executor.set_adapters(AdapterSet(executor.config))
    assert "adapters f32" not in executor.memory().weights_by_format
    np.testing.assert_allclose(none, logits(executor, "qwen3"), atol=1e-5)
    assert np.abs(full - none).max() > 0.05
    executor.close()
