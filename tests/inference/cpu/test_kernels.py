"""The CPU's kernels: which one is taken, and that they give the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference import Engine
from inference.cpu.kernels import NAMES, choose_product, kernel_notices
from inference.errors import KernelUnavailable
from inference.kernels.base import KernelPreference
from tests.inference.opening import open_numpy

Tiny = Callable[[str], Path]
TOLERANCE = 1e-4


def logits_of(path: Path, kernel: str, ids: list[int]) -> np.ndarray:
    """Of a long step, then of single tokens."""
    executor = open_numpy(path, kernel=kernel)
    cache = executor.new_cache(len(ids))
    steps = [ids[:-3], *([token] for token in ids[-3:])]
    logits = [executor.forward(cache, step, "all") for step in steps]
    executor.close()
    return np.concatenate([each for each in logits if each is not None])


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "phi3", "qwen3_moe", "gpt_oss"])
def test_column_major_gives_what_the_reference_gives(tiny: Tiny, family: str) -> None:
    ids = np.random.default_rng(3).integers(0, 500, 131).tolist()
    path = tiny(family) / "config.json"
    np.testing.assert_allclose(
        logits_of(path, "column_major", ids), logits_of(path, "reference", ids), rtol=0, atol=TOLERANCE
    )


def test_column_major_on_a_real_model(smollm2_path: Path) -> None:
    ids = np.random.default_rng(3).integers(0, 49152, 70).tolist()
    found, expected = (logits_of(smollm2_path, kernel, ids) for kernel in ("column_major", "reference"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_column_major_unless_asked_otherwise() -> None:
    assert choose_product([]).variant == "column_major"
    asked = choose_product([KernelPreference("reference", force=True)])
    assert (asked.variant, asked.reason) == ("reference", "asked for by name")
    assert asked.rejected == (("column_major", "reference was asked for"),)


def test_kernels_of_the_gpu() -> None:
    assert choose_product([KernelPreference("tiled", force=False)]).variant == "column_major"
    with pytest.raises(KernelUnavailable, match="the CPU has no kernel called 'tiled'; there are column_major, refer"):
        choose_product([KernelPreference("tiled", force=True)])
    preferences = [KernelPreference(name, force=False) for name in ("tiled", *NAMES)]
    assert kernel_notices(preferences) == [
        "--kernels prefer:tiled has no effect on the CPU: there are column_major, reference"
    ]


def test_the_engine_takes_and_shows_them(tiny: Tiny) -> None:
    path = tiny("qwen3_moe") / "config.json"
    for options, expected in (((), "column_major"), (("force:reference",), "reference")):
        engine = Engine.open(path.parent, device="cpu", kernels=options)
        by_kind = {row.kind: row.variant for row in engine.plan("decode")}
        assert (by_kind["matmul"], by_kind["lm_head"]) == (expected, expected)
        assert (by_kind["expert_matmul"], by_kind["attention"]) == ("reference", "reference")
        engine.close()
