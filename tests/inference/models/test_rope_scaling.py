"""Rope scaling against the formulas of the papers, written out pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.errors import BadModelFile
from inference.models.config import ModelConfig, RopeConfig
from inference.models.fields import Fields
from inference.models.rope_scaling import gguf_rope, hf_long_rope, hf_rope
from tests.inference.convert import convert
from tests.inference.gguf_variants import rewrite
from tests.inference.opening import open_store

HEAD_DIM = 16
SHORT, LONG = [1.0, 1.1, 1.25, 2.0], [1.5, 4.0, 9.0, 20.0]
"""For phi3's half of a head: 8 columns, 4 pairs."""
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
CONTEXTS = {"max_position_embeddings": 2048, "original_max_position_embeddings": 128}
ATTENTION_FACTOR = math.sqrt(1 + math.log(2048 / 128) / math.log(128))


def hf(values: dict[str, Any]) -> Fields:
    return Fields({"max_position_embeddings": 2048} | values, "config.json:")


def gguf(values: dict[str, Any]) -> Fields:
    return Fields({f"x.rope.{key}": value for key, value in values.items()}, "m.gguf: metadata", "x.")


def plain(theta: float = 10_000.0, dim: int = HEAD_DIM) -> RopeConfig:
    return RopeConfig(theta, dim, interleaved=False)


def yarn_factor(pair: int, factor: float, original: int, fast: float = 32, slow: float = 1) -> float:
    """arXiv:2309.00071, equations 17 to 23: by how many times a pair turns within the original context."""
    ends = [HEAD_DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(10_000)) for turns in (fast, slow)]
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), HEAD_DIM - 1)
    stretched = min(max((pair - low) / (high - low), 0), 1)
    return 1 / (stretched / factor + 1 - stretched)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn(key: str) -> None:
    rope = hf_rope(hf({key: YARN, "rope_theta": 10_000.0}), HEAD_DIM)
    assert rope.frequency_factors == pytest.approx([yarn_factor(pair, 4, 4096) for pair in range(8)])
    assert rope.frequency_factors[0] == 1 and rope.frequency_factors[7] == 4  # type: ignore[index]
    assert rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_with_all_it_may_say() -> None:
    rope = hf_rope(hf({"rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5}}), HEAD_DIM)
    assert rope.frequency_factors == pytest.approx([yarn_factor(pair, 4, 4096, 16, 2) for pair in range(8)])
    assert rope.magnitude == 1.5
    rope = hf_rope(hf({"rope_scaling": YARN | {"mscale": 0.5, "mscale_all_dim": 0.25}}), HEAD_DIM)
    assert rope.magnitude == pytest.approx((0.05 * math.log(4) + 1) / (0.025 * math.log(4) + 1))


def test_yarn_in_gguf() -> None:
    scaling = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 4096}
    assert gguf_rope(gguf(scaling), plain()) == hf_rope(hf({"rope_scaling": YARN}), HEAD_DIM)
    given = gguf_rope(gguf(scaling | {"scaling.yarn_attn_factor": 1.5}), plain())
    assert given == hf_rope(hf({"rope_scaling": YARN | {"attention_factor": 1.5}}), HEAD_DIM)


def test_yarn_s_ramp_with_ends_that_are_not_rounded() -> None:
    rope = hf_rope(hf({"rope_scaling": YARN | {"truncate": False}}), HEAD_DIM)
    low, high = (HEAD_DIM * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(10_000)) for turns in (32, 1))
    stretched = [min(max((pair - low) / (high - low), 0), 1) for pair in range(8)]
    assert rope.frequency_factors == pytest.approx([1 / (s / 4 + 1 - s) for s in stretched])


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_linear(kind: str) -> None:
    assert hf_rope(hf({"rope_scaling": {kind: "linear", "factor": 4.0}}), HEAD_DIM).position_scale == 1 / 4


@pytest.mark.parametrize(
    "values",
    [
        {"scaling.type": "linear", "scaling.factor": 4.0},
        {"scaling.factor": 4.0},  # linear is what a file means that does not say
        {"scale_linear": 4.0},  # as old files call it
    ],
)
def test_linear_in_gguf(values: dict[str, Any]) -> None:
    assert gguf_rope(gguf(values), plain()).position_scale == 1 / 4
    assert gguf_rope(gguf(values | {"scaling.type": "none"}), plain()) == plain()


def test_llama_3() -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    rope = hf_rope(hf({"rope_scaling": scaling}), HEAD_DIM)
    expected = []
    for pair in range(8):
        wavelength = 2 * math.pi * 10_000 ** (pair / 8)
        smooth = (64 / wavelength - 1) / (4 - 1)
        expected.append(1 if wavelength < 64 / 4 else 8 if wavelength > 64 / 1 else 1 / ((1 - smooth) / 8 + smooth))
    assert len({1, 8} & set(expected)) == 2 and any(1 < factor < 8 for factor in expected)
    assert rope.frequency_factors == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope(kind: str) -> None:
    """arXiv:2402.13753: a factor a pair, others beyond the original context, and sqrt(1 + ln s / ln L) on both."""
    fields = hf(CONTEXTS | {"rope_scaling": LONGROPE | {"rope_type": kind}, "partial_rotary_factor": 0.5})
    short, long = hf_rope(fields, HEAD_DIM), hf_long_rope(fields, HEAD_DIM)
    assert long is not None
    assert (short.rotary_dim, short.frequency_factors, long[1].frequency_factors) == (8, tuple(SHORT), tuple(LONG))
    assert long[0] == 128
    assert short.magnitude == long[1].magnitude == pytest.approx(ATTENTION_FACTOR)


@pytest.mark.parametrize(
    ("scaling", "magnitude"),
    [
        ({"attention_factor": 1.25}, 1.25),
        ({"factor": 4.0}, math.sqrt(1 + math.log(4) / math.log(128))),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_longrope_s_attention_factor(scaling: dict[str, Any], magnitude: float) -> None:
    fields = hf(CONTEXTS | {"rope_scaling": LONGROPE | scaling})
    assert hf_rope(fields, 8).magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize("factors", [[1.0] * 3, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, "2"]])
def test_longrope_s_factors_are_one_a_pair_and_above_0(factors: list[Any]) -> None:
    with pytest.raises(BadModelFile, match=r"short_factor is .*, expected 4 numbers above 0"):
        hf_rope(hf(CONTEXTS | {"rope_scaling": LONGROPE | {"short_factor": factors}}), 8)


@pytest.fixture
def phi3_gguf(tmp_path: Path) -> Callable[[int], ModelConfig]:
    """The tiny phi3 as a GGUF file with LongRoPE's two tensors, used with a context of so many tokens."""
    tensors = {f"rope_factors_{k}.weight": np.array(v, np.float32) for k, v in (("short", SHORT), ("long", LONG))}
    metadata = {
        "phi3.context_length": 2048,
        "phi3.rope.scaling.original_context_length": 128,
        "phi3.rope.scaling.attn_factor": ATTENTION_FACTOR,
    }
    path = rewrite(convert("phi3", tmp_path / "plain.gguf"), tmp_path / "long.gguf", metadata, tensors)
    return lambda context: open_store(path)[0].for_context(context)


def test_longrope_in_gguf(phi3_gguf: Callable[[int], ModelConfig]) -> None:
    for context, factors in ((128, SHORT), (129, LONG)):
        for layer in phi3_gguf(context).layers:
            assert layer.rope.frequency_factors == pytest.approx(factors)
            assert layer.rope.magnitude == pytest.approx(ATTENTION_FACTOR)
            assert layer.window == 32


def test_a_config_without_longrope_is_the_same_for_any_context() -> None:
    config, _ = open_store(Path(__file__).parents[2] / "data" / "tiny" / "llama" / "config.json")
    assert config.for_context(100_000) is config
