"""Model configs read from GGUF metadata, against the config.json of the same models and against known facts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.formats.gguf import open_gguf
from inference.models.config import ModelConfig, RopeConfig
from inference.models.families import config_from_gguf
from inference.rope import rope_table

Tiny = Callable[[str], Path]
FAMILIES = ["llama", "gemma3_text"]


def read(path: Path) -> ModelConfig:
    return config_from_gguf(open_gguf(path))


def tiny_config(tiny: Tiny, family: str) -> tuple[ModelConfig, dict[str, Any]]:
    folder = tiny(family)
    return read(folder / "gguf" / "model-f16.gguf"), json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_of_config_json(tiny: Tiny, family: str) -> None:
    config, expected = tiny_config(tiny, family)
    assert config.family == {"llama": "llama", "gemma3_text": "gemma3"}[family]
    assert config.name == "model-f16"
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_context,
        "num_hidden_layers": config.num_layers,
    }
    assert sizes == {key: expected[key] for key in sizes}
    assert config.norm_eps == pytest.approx(expected["rms_norm_eps"])
    assert config.attention_scale == pytest.approx(expected["head_dim"] ** -0.5)
    assert (config.q_size, config.kv_size) == (64, 32)
    assert config.weights["lm_head"] == config.weights["embedding"] == "token_embd.weight"
    assert config.attention_softcap is None and config.logit_softcap is None


def test_llama_rotates_pairs_with_llama_3_frequencies(tiny: Tiny) -> None:
    config, expected = tiny_config(tiny, "llama")
    assert (config.activation, config.embedding_scale) == ("silu", 1.0)
    assert not config.qk_norm and not config.post_norms
    (rope,) = {layer.rope for layer in config.layers}
    assert {layer.window for layer in config.layers} == {None}
    assert rope.interleaved and rope.frequency_factors is not None
    assert rope.theta == expected["rope_parameters"]["rope_theta"]


def test_gemma_3_alternates_windows_and_rope_bases(tiny: Tiny) -> None:
    config, expected = tiny_config(tiny, "gemma3_text")
    assert config.activation == "gelu_tanh"
    assert config.embedding_scale == expected["hidden_size"] ** 0.5
    assert config.qk_norm and config.post_norms
    kinds = {"sliding_attention": expected["sliding_window"], "full_attention": None}
    assert [layer.window for layer in config.layers] == [kinds[kind] for kind in expected["layer_types"]]
    local, full = config.layers[0].rope, config.layers[5].rope
    assert local == RopeConfig(10_000.0, 16, interleaved=False)
    assert full == RopeConfig(1_000_000.0, 16, interleaved=False, position_scale=1 / 8)
    assert all((layer.rope is full) == (layer.window is None) for layer in config.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_rope_tables_have_the_reference_frequencies(tiny: Tiny, family: str) -> None:
    config, expected = tiny_config(tiny, family)
    golden = json.loads((tiny(family) / "golden.json").read_text())["rope"]
    for kind, layer in zip(expected.get("layer_types", ["all"] * config.num_layers), config.layers, strict=True):
        angles = np.outer([0, 1, 7, 500], golden[kind]["inv_freq"])
        table = rope_table(layer.rope, 0, 501)[[0, 1, 7, 500]]
        np.testing.assert_allclose(table, np.stack([np.cos(angles), np.sin(angles)], axis=-1), atol=2e-5)


def test_smollm2(smollm2_path: Path) -> None:
    config = read(smollm2_path)
    assert (config.family, config.num_layers, config.hidden_size, config.intermediate_size) == ("llama", 30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_context, config.norm_eps) == (49152, 8192, pytest.approx(1e-5))
    assert config.layers[0].rope == RopeConfig(100_000.0, 64, interleaved=True)
    assert config.weights["lm_head"] == "token_embd.weight"


def test_gemma_3_270m(gemma3_path: Path) -> None:
    config = read(gemma3_path)
    assert (config.family, config.num_layers, config.hidden_size, config.intermediate_size) == ("gemma3", 18, 640, 2048)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 256)
    assert (config.vocab_size, config.max_context, config.norm_eps) == (262144, 32768, pytest.approx(1e-6))
    assert config.attention_scale == 1 / 16
    assert [i for i, layer in enumerate(config.layers) if layer.window is None] == [5, 11, 17]
    assert {layer.window for layer in config.layers} == {512, None}
    assert config.layers[0].rope.theta == 10_000.0 and config.layers[5].rope.theta == 1_000_000.0
