"""The NumPy executor on two real models, against what llama.cpp gives for them.

By teacher forcing: the reference's continuation is fed, and each step's logits are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.events import Finished, Token

Golden = Callable[[str], Any]

TOLERANCE = {"smollm2": 0.002, "gemma3": 0.05}
"""Largest difference from llama.cpp's logits, which on Gemma rounds GELU to f16."""
FLOAT64_TOLERANCE = {"smollm2": 0.002, "gemma3": 0.005}


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
