"""The NumPy executor against what Transformers gives for tiny models and llama.cpp for real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.events import Finished, Token
from inference.plan.ops import Op
from tests.conftest import DATA
from tests.inference.opening import open_numpy

Tiny = Callable[[str], Path]
Golden = Callable[[str], Any]

FAMILIES = ["llama", "gemma3_text"]
TINY_TOLERANCE = 1e-3
NEAR_TIE = 2e-3
TOLERANCE = {"smollm2": 0.002, "gemma3": 0.05}
"""Largest difference from llama.cpp's logits, which on Gemma rounds GELU to f16."""
FLOAT64_TOLERANCE = {"smollm2": 0.002, "gemma3": 0.005}


@cache
def tiny_arrays(path: Path) -> Mapping[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def run_observed(path: Path, ids: list[int], fused: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits (n, V) and the residual stream: what enters layer 0, then what leaves each layer [, the final norm]."""
    hidden: list[np.ndarray] = []

    def observe(op: Op, output: np.ndarray) -> None:
        if op.kind == "embed" or op.output.name.endswith("feed_forward.residual") or op.name == "final_norm":
            hidden.append(output)

    executor = open_numpy(path, fused)
    logits = executor.forward(executor.new_cache(len(ids)), ids, "all", observe)
    assert logits is not None
    return logits, hidden


def first_difference(family: str, hidden: list[np.ndarray], size: int) -> str:
    """Where the residual stream first leaves the reference's: the layer to look at."""
    golden = tiny_arrays(DATA / "tiny" / family / "golden.npz")
    positions = golden[f"hidden_{size}_pos"]
    for index, (found, expected) in enumerate(zip(hidden, golden[f"hidden_{size}"], strict=False)):
        worst = float(np.abs(found[positions] - expected).max())
        if not worst <= TINY_TOLERANCE:
            names = {0: "the embedding", len(golden[f"hidden_{size}"]) - 1: "the final norm"}
            return (
                f"the first hidden state that differs leaves {names.get(index, f'layer {index - 1}')}: by {worst:.2g}"
            )
    return "no hidden state differs"


@pytest.mark.parametrize("size", [1, 7, 33, 150])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_logits(tiny: Tiny, family: str, fused: bool, size: int) -> None:
    folder = tiny(family)
    golden = tiny_arrays(folder / "golden.npz")
    logits, hidden = run_observed(folder / "gguf" / "model-f16.gguf", golden[f"ids_{size}"].tolist(), fused)
    expected = golden[f"logits_{size}"]
    compared = logits if expected.shape == logits.shape else logits[:, golden["cols"]]
    worst = float(np.abs(compared - expected).max())
    assert worst <= TINY_TOLERANCE, first_difference(family, hidden, 150 if size == 150 else 7) if size > 1 else worst
    clear = golden[f"gap_{size}"] > NEAR_TIE
    assert clear.any()
    np.testing.assert_array_equal(logits.argmax(axis=1)[clear], golden[f"argmax_{size}"][clear])
    largest = logits.max(axis=1)
    logsumexp = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    np.testing.assert_allclose(logsumexp, golden[f"logsumexp_{size}"], atol=TINY_TOLERANCE)


@pytest.mark.parametrize("size", [7, 150])
@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_hidden_states(tiny: Tiny, family: str, size: int) -> None:
    folder = tiny(family)
    golden = tiny_arrays(folder / "golden.npz")
    _, hidden = run_observed(folder / "gguf" / "model-f16.gguf", golden[f"ids_{size}"].tolist(), fused=False)
    assert len(hidden) == len(golden[f"hidden_{size}"])
    assert first_difference(family, hidden, size) == "no hidden state differs"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_difference_names_the_layer(tiny: Tiny, family: str) -> None:
    folder = tiny(family)
    ids = tiny_arrays(folder / "golden.npz")["ids_7"].tolist()
    _, hidden = run_observed(folder / "gguf" / "model-f16.gguf", ids, fused=True)
    hidden[3] = hidden[3] + 0.01
    assert first_difference(family, hidden, 7).startswith("the first hidden state that differs leaves layer 2: by 0.01")


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_q8_0_logits(tiny: Tiny, family: str) -> None:
    folder = tiny(family)
    golden, quantised = (tiny_arrays(folder / name) for name in ("golden.npz", "gguf/golden.npz"))
    path = folder / "gguf" / "model-q8_0.gguf"
    logits, _ = run_observed(path, golden["ids_33"].tolist(), fused=True)
    np.testing.assert_allclose(logits[:, quantised["cols"]], quantised["q8_0_logits_33"], atol=TINY_TOLERANCE)
    logits, _ = run_observed(path, golden["ids_150"].tolist(), fused=True)
    expected = quantised["q8_0_logits_150_last8"]
    np.testing.assert_allclose(logits[-8:, quantised["cols"]], expected, atol=TINY_TOLERANCE)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_greedy(tiny: Tiny, family: str, name: str) -> None:
    golden = tiny_arrays(tiny(family) / "golden.npz")
    executor = open_numpy(tiny(family) / "gguf" / "model-f16.gguf")
    ids = golden[f"greedy_{name}_prompt"].tolist()
    expected = golden[f"greedy_{name}"].tolist()
    kv = executor.new_cache(len(ids) + len(expected))
    found = []
    for _ in expected:
        logits = executor.forward(kv, ids, "last")
        assert logits is not None
        ids = [int(logits.argmax())]
        found += ids
    assert found == expected


# The real models, by teacher forcing: the reference's continuation is fed, and each step's logits are compared.


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Engine]:
    engine = Engine.open(smollm2_path, device="cpu")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[Engine]:
    engine = Engine.open(gemma3_path, device="cpu")
    yield engine
    engine.close()


def check_case(engine: Engine, golden: Golden, model: str, case_id: str, least_margin: float) -> None:
    """Logits at every stored step, and the greedy choice up to the first step whose margin is below `least_margin`."""
    (case,) = (case for case in golden(f"{model}.json")["cases"] if case["id"] == case_id)
    reference, arrays, float64 = case["f32"], golden(f"{model}.npz"), golden(f"{model}.np64.npz")
    prompt, continuation = case["ids"][: case["n_prompt"]], reference["ids"]
    first = len(prompt) - 1
    # Row s is the position that chose token s of the continuation.
    logits = engine.logits([*prompt, *continuation[:-1]], range(first, first + len(continuation)))
    steps = [step for step in range(len(continuation)) if f"f32/{case_id}/{step}/top_ids" in arrays]
    assert len(steps) >= 3
    for step in steps:
        top_ids, top_values = (arrays[f"f32/{case_id}/{step}/{part}"] for part in ("top_ids", "top_vals"))
        worst = float(np.abs(logits[step][top_ids] - top_values).max())
        assert worst <= TOLERANCE[model], f"step {step}: {worst}"
    worst = float(np.abs(logits[0][float64[f"{case_id}/top_ids"]] - float64[f"{case_id}/top_vals"]).max())
    assert worst <= FLOAT64_TOLERANCE[model], f"float64: {worst}"

    margins = np.array(reference["margins"])
    compared = next((step for step, margin in enumerate(margins) if margin < least_margin), len(margins))
    assert compared > 2
    chosen = logits.argmax(axis=1).tolist()
    assert chosen[:compared] == continuation[:compared]
    # The same margins, since each is the difference of two logits.
    top_two = np.sort(logits, axis=1)[:, -2:]
    np.testing.assert_allclose(
        (top_two[:, 1] - top_two[:, 0])[:compared], margins[:compared], atol=2 * TOLERANCE[model]
    )


@pytest.mark.parametrize(
    "case_id", ["short", "story", "multilingual", "code", "medium", "long", "chat_single", "chat_multi"]
)
def test_smollm2_case(smollm2: Engine, golden: Golden, case_id: str) -> None:
    check_case(smollm2, golden, "smollm2", case_id, least_margin=0.05)


@pytest.mark.parametrize(
    ("case_id", "least_margin"),
    [
        ("short", 0.05),
        ("story", 0.05),
        ("multilingual", 0.05),
        ("code", 0.05),
        ("medium", 0.05),
        # Recalls words from outside the window of 512; its smallest margins are below 0.05.
        ("long", 0.02),
    ],
)
def test_gemma3_case(gemma3: Engine, golden: Golden, case_id: str, least_margin: float) -> None:
    check_case(gemma3, golden, "gemma3", case_id, least_margin)


@pytest.mark.parametrize("case_id", ["chat_single", "short"])
def test_smollm2_greedy_text(smollm2: Engine, golden: Golden, case_id: str) -> None:
    """The whole reply as a caller gets it: ids, text and why it ended."""
    (case,) = (case for case in golden("smollm2.json")["cases"] if case["id"] == case_id)
    reference = case["f32"]
    assert reference["stopped_at_eog"] == len(reference["ids"]) - 1
    events = list(smollm2.generate(case["ids"], Sampling(temperature=0), max_tokens=48))
    tokens = [event for event in events if isinstance(event, Token)]
    assert [token.id for token in tokens] == reference["ids"][:-1]
    text = bytes.fromhex(reference["text_hex"]).decode().removesuffix("<|im_end|>")
    assert "".join(token.text for token in tokens) == text
    assert isinstance(events[-1], Finished) and events[-1].reason == "stop"
