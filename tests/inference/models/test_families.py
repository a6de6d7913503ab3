"""Configs read from config.json and from GGUF: against each other, Transformers' frequencies and known facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.models.families import GGUF_FAMILIES, HF_FAMILIES
from inference.rope import rope_table
from tests.inference.convert import ARCHITECTURES, convert
from tests.inference.opening import open_store
from tests.inference.tiny_golden import FAMILIES, folder, golden_json
from tests.inference.tiny_golden import GGUF_FAMILIES as TINY_GGUF

POSITIONS = [0, 1, 7, 500]


def read(family: str, file: str = "config.json") -> ModelConfig:
    return open_store(folder(family) / file)[0]


def gguf_config(family: str, tmp_path: Path) -> ModelConfig:
    """Of the reference's file, or of one converted here."""
    path = folder(family) / "gguf" / "model-f16.gguf"
    return open_store(path if path.is_file() else convert(family, tmp_path / "model.gguf"))[0]


def described(family: str) -> dict[str, Any]:
    """The values of config.json."""
    values: dict[str, Any] = json.loads((folder(family) / "config.json").read_text(encoding="utf-8"))
    return values


def test_every_family_has_a_tiny_model() -> None:
    """`gemma3` is `gemma3_text` inside a model that sees images: see test_config_json.py."""
    assert {read(family).family for family in FAMILIES} <= set(HF_FAMILIES)
    tiny = {described(path.parent.name)["model_type"] for path in folder("llama").parent.glob("*/config.json")}
    assert set(HF_FAMILIES) - {"gemma3"} <= tiny
    assert set(ARCHITECTURES.values()) <= set(GGUF_FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_of_config_json(family: str) -> None:
    config, values = read(family), described(family)
    found = {
        "model_type": config.family,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_context,
        "num_hidden_layers": config.num_layers,
        "rms_norm_eps": config.norm_eps,
        "head_dim": config.head_dim,
    }
    assert found == {"head_dim": 16} | {key: values[key] for key in found if key in values}
    assert (config.weights["lm_head"] == config.weights["embedding"]) == values["tie_word_embeddings"]


@pytest.mark.parametrize("family", FAMILIES)
def test_older_names_mean_the_same(family: str) -> None:
    assert read(family, "config.legacy.json") == read(family)


@pytest.mark.parametrize("family", sorted({*TINY_GGUF, *ARCHITECTURES}))
def test_gguf_means_the_same_but_for_names_and_the_order_of_rows(family: str, tmp_path: Path) -> None:
    hf, gguf = read(family), gguf_config(family, tmp_path)
    interleaved = GGUF_FAMILIES[gguf.family].gguf_interleaved
    assert {layer.rope.interleaved for layer in gguf.layers} == {interleaved}
    assert gguf.norm_eps == pytest.approx(hf.norm_eps)
    for (end, expected), (found_end, found) in zip(ropes(hf), ropes(gguf), strict=True):
        assert end == found_end
        np.testing.assert_allclose(rope_table(found, 0, 200), rope_table(expected, 0, 200), atol=2e-5)
    scales = ("embedding_scale", "residual_scale", "logit_scale", "attention_softcap", "logit_softcap")
    for name in scales if family == "gemma2" else (*scales, "attention_scale"):
        assert getattr(gguf, name) == pytest.approx(getattr(hf, name)), name
    assert replace(gguf, **dict.fromkeys(DIFFERENT)) == replace(hf, **dict.fromkeys(DIFFERENT))


DIFFERENT = (
    "family", "name", "weights", "layers", "norm_eps", "attention_scale", "embedding_scale", "residual_scale",
    "logit_scale",
)  # fmt: skip
"""Compared one by one, or different by design: queries of the tiny gemma2's GGUF are scaled in the file."""


def ropes(config: ModelConfig) -> list[tuple[int | None, RopeConfig]]:
    """Each layer's window and rope."""
    return [(layer.window, layer.rope) for layer in config.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_rope_tables_have_the_reference_frequencies(family: str) -> None:
    config, values = read(family), described(family)
    kinds = values.get("layer_types", ["all"] * config.num_layers)
    for index, (kind, layer) in enumerate(zip(kinds, config.layers, strict=True)):
        reference = golden_json(family)["rope"]
        reference = reference.get(kind, reference.get("all"))
        turns = values.get("no_rope_layers", [1] * config.num_layers)[index]
        angles = np.outer(POSITIONS, reference["inv_freq"]) * turns
        expected = reference["attention_scaling"] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        table = rope_table(layer.rope, 0, 501)[POSITIONS]
        np.testing.assert_allclose(table, expected, atol=3e-5)


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama", [None] * 4),
        ("mistral", [32] * 4),
        ("phi3", [32] * 4),
        ("qwen2", [None] * 4),  # names a window, and use_sliding_window false
        ("smollm3", [None] * 4),
        ("gemma2", [32, None, 32, None]),
        ("gemma3_text", [32, 32, 32, 32, 32, None, 32, 32]),
    ],
)
def test_windows(family: str, windows: list[int | None]) -> None:
    for file in ("config.json", "config.legacy.json"):
        assert [layer.window for layer in read(family, file).layers] == windows


def test_llama_rotates_pairs_in_gguf(tmp_path: Path) -> None:
    config = gguf_config("llama", tmp_path)
    assert (config.activation, config.qk_norm, config.pre_norms, config.post_norms) == ("silu", "none", True, False)
    (rope,) = {layer.rope for layer in config.layers}
    assert rope.interleaved and rope.frequency_factors is not None


def test_llama_with_biases() -> None:
    config = read("llama_linear")
    assert config.biases == {"attention.q", "attention.k", "attention.v", "attention.output"}
    assert config.layers[0].rope == RopeConfig(10_000.0, 16, interleaved=False, position_scale=1 / 4)
    assert config.weights["layers.1.attention.q.bias"].tensor == "model.layers.1.self_attn.q_proj.bias"


def test_qwen_has_biases_or_norms_of_heads() -> None:
    assert read("qwen2").biases == {"attention.q", "attention.k", "attention.v"}
    assert (read("qwen2").qk_norm, read("qwen3").qk_norm, read("qwen3").biases) == ("none", "head", frozenset())


def test_gemma_2() -> None:
    config = read("gemma2")
    assert (config.attention_softcap, config.logit_softcap, config.attention_scale) == (4.0, 5.0, 1 / 8)
    assert (config.activation, config.embedding_scale, config.post_norms) == ("gelu_tanh", 8.0, True)
    assert config.weights["layers.0.attention.norm"].offset == config.weights["final_norm"].offset == 1.0
    assert config.weights["layers.0.attention.q"].offset == 0.0


def test_gemma_3_alternates_windows_and_rope_bases() -> None:
    config = read("gemma3_text")
    assert (config.qk_norm, config.post_norms, config.attention_softcap) == ("head", True, None)
    local = LayerConfig(32, RopeConfig(10_000.0, 16, interleaved=False))
    full = LayerConfig(None, RopeConfig(1_000_000.0, 16, interleaved=False, position_scale=1 / 8))
    assert config.layers == (*[local] * 5, full, local, local)


def test_phi_3_stacks_projections_and_rotates_half_a_head() -> None:
    config = read("phi3")
    assert config.layers[0].rope.rotary_dim == 8
    q, k, v = (config.weights[f"layers.2.attention.{part}"] for part in "qkv")
    assert {part.tensor for part in (q, k, v)} == {"model.layers.2.self_attn.qkv_proj.weight"}
    assert [(part.first_row, part.rows) for part in (q, k, v)] == [(0, 64), (64, 32), (96, 32)]
    up = config.weights["layers.2.feed_forward.up"]
    assert (up.first_row, up.rows) == (128, 128)


def test_smollm3_does_not_turn_every_fourth_layer(tmp_path: Path) -> None:
    for config in (read("smollm3"), gguf_config("smollm3", tmp_path)):
        assert [layer.rope.position_scale for layer in config.layers] == [1, 1, 1, 0]


def test_olmo_2_norms_only_what_parts_give() -> None:
    config = read("olmo2")
    assert (config.qk_norm, config.pre_norms, config.post_norms) == ("projection", False, True)
    assert "layers.0.attention.norm" not in config.weights


def test_granite_has_four_multipliers() -> None:
    config = read("granite")
    assert (config.embedding_scale, config.attention_scale, config.residual_scale) == (1.5, 0.15, 0.7)
    assert config.logit_scale == 1 / 0.5


def test_smollm2(smollm2_path: Path) -> None:
    config, _ = open_store(smollm2_path)
    assert (config.family, config.num_layers, config.hidden_size, config.intermediate_size) == ("llama", 30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_context, config.norm_eps) == (49152, 8192, pytest.approx(1e-5))
    assert config.layers[0].rope == RopeConfig(100_000.0, 64, interleaved=True)
    assert config.weights["lm_head"].tensor == "token_embd.weight"


def test_gemma_3_270m(gemma3_path: Path) -> None:
    config, _ = open_store(gemma3_path)
    assert (config.family, config.num_layers, config.hidden_size, config.intermediate_size) == ("gemma3", 18, 640, 2048)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 256)
    assert (config.vocab_size, config.max_context, config.norm_eps) == (262144, 32768, pytest.approx(1e-6))
    assert config.attention_scale == 1 / 16
    assert [i for i, layer in enumerate(config.layers) if layer.window is None] == [5, 11, 17]
    assert {layer.window for layer in config.layers} == {512, None}
    assert config.layers[0].rope.theta == 10_000.0 and config.layers[5].rope.theta == 1_000_000.0
