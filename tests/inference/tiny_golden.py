"""What Transformers gives for the tiny models in tests/data/tiny, and comparisons with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from inference.plan.ops import Op
from tests.conftest import DATA

FAMILIES = (
    "gemma2", "gemma3_text", "gpt_oss", "granite", "llama", "llama_linear", "mistral", "olmo2", "phi3", "qwen2",
    "qwen2_yarn", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip
GGUF_FAMILIES = ("gemma2", "gemma3_text", "llama", "qwen3")
"""Those of which there is a GGUF file too."""
SIZES = (7, 150, 1, 33)
"""Numbers of ids; windows are 32. Those with hidden states come first, so that a failure names the layer."""
TOLERANCE = 1e-3
NEAR_TIE = 2e-3
"""Largest difference of logits, and least margin at which the greedy choice has to be the same."""


def folder(family: str) -> Path:
    """The folder of a tiny model."""
    return DATA / "tiny" / family


@cache
def arrays(path: Path) -> Mapping[str, np.ndarray]:
    """The arrays of an .npz file by name."""
    with np.load(path) as loaded:
        return dict(loaded)


def golden(family: str) -> Mapping[str, np.ndarray]:
    """The family's golden.npz."""
    return arrays(folder(family) / "golden.npz")


@cache
def golden_json(family: str) -> Any:
    """The family's golden.json."""
    return json.loads((folder(family) / "golden.json").read_text(encoding="utf-8"))


class Hidden:
    """Collects the residual stream from an executor's `observe`: what enters layer 0, then what leaves each layer,
    then the final norm where it is an operation of its own. Each is (n, D).
    """

    def __init__(self) -> None:
        self.states: list[np.ndarray] = []

    def __call__(self, op: Op, output: np.ndarray) -> None:
        if op.kind == "embed" or op.output.name.endswith("feed_forward.residual") or op.name == "final_norm":
            self.states.append(output)


def check_logits(family: str, size: int, logits: np.ndarray, hidden: list[np.ndarray] | None = None) -> None:
    """Asserts that logits (n, V) for `ids_SIZE` are the reference's: values, greedy choices and sums.

    The message names the first layer that differs where `hidden` are given.
    """
    reference = golden(family)
    expected = reference[f"logits_{size}"]
    compared = logits if expected.shape == logits.shape else logits[:, reference["cols"]]
    worst = float(np.abs(compared - expected).max())
    where = first_difference(family, size, hidden) if hidden is not None else "where the CPU agrees, a kernel differs"
    assert worst <= TOLERANCE, f"{family}, {size} ids: logits differ by {worst:.2g}; {where}"
    clear = reference[f"gap_{size}"] > NEAR_TIE
    assert clear.any()
    np.testing.assert_array_equal(logits.argmax(axis=1)[clear], reference[f"argmax_{size}"][clear])
    largest = logits.max(axis=1)
    logsumexp = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    np.testing.assert_allclose(logsumexp, reference[f"logsumexp_{size}"], atol=TOLERANCE)


def first_difference(family: str, size: int, hidden: list[np.ndarray]) -> str:
    """Where the residual stream first leaves the reference's: the layer to look at."""
    reference = golden(family)
    if f"hidden_{size}" not in reference:
        return f"there are no reference states for {size} ids"
    expected_states = reference[f"hidden_{size}"]
    positions = reference[f"hidden_{size}_pos"]
    for index, (found, expected) in enumerate(zip(hidden, expected_states, strict=False)):
        worst = float(np.abs(found[positions] - expected).max())
        if not worst <= TOLERANCE:
            names = {0: "the embedding", len(expected_states) - 1: "the final norm"}
            name = names.get(index, f"layer {index - 1}")
            return f"the first hidden state that differs leaves {name}: by {worst:.2g}"
    return "no hidden state differs"
