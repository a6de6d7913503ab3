"""config.json files as people have them: values left out, tensors under other names, models for other purposes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.errors import BadModelFile, GlasschatError, UnsupportedModel
from inference.formats.safetensors import open_safetensors
from inference.model_files import open_files
from inference.models.config import ModelConfig
from inference.models.families import HF_FAMILIES, config_from_hf, read_hf_config
from tests.inference.convert import read_tensors
from tests.inference.opening import open_numpy
from tests.inference.tiny_golden import FAMILIES, check_logits, folder, golden

ODD = (None, -1, 0, 1.5, 2**31 - 1, 2**40, 1e308, float("nan"), "x", "yarn", [], [1], {}, True)


def values_of(family: str, file: str = "config.json") -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder(family) / file).read_text(encoding="utf-8"))
    return values


def config_of(family: str, changes: Mapping[str, Any] | None = None, without: tuple[str, ...] = ()) -> ModelConfig:
    """The config that the tiny model's legacy config.json gives when some values are changed or left out."""
    values = values_of(family, "config.legacy.json") | dict(changes or {})
    return config_from_hf({k: v for k, v in values.items() if k not in without}, open_safetensors(folder(family)))


@pytest.fixture
def renamed(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with a tiny model's tensors under other names, and gives its path."""

    def write(
        family: str, values: Mapping[str, Any], rename: Callable[[str], str], more: Mapping[str, Any] | None = None
    ) -> Path:
        from safetensors.numpy import save_file

        tensors = {rename(name): tensor for name, tensor in read_tensors(folder(family)).items()} | dict(more or {})
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
        return tmp_path

    return write


def logits_of(path: Path, family: str) -> np.ndarray:
    executor = open_numpy(path / "config.json")
    ids = golden(family)["ids_33"].tolist()
    logits = executor.forward(executor.new_cache(len(ids)), ids, "all")
    assert logits is not None
    return logits


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma_3_that_sees_images(renamed: Callable[..., Path], prefix: str) -> None:
    """`text_config` leaves out what is a default of Gemma3TextConfig; the vision part is not used, which is said."""
    text = values_of("gemma3_text", "config.legacy.json")
    for key in ("model_type", "architectures", "rope_theta", "hidden_activation", "tie_word_embeddings"):
        del text[key]
    values = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    vision = {
        f"vision_tower.layers.{i}.q_proj.{end}": np.ones(4, np.float32) for i in range(3) for end in ("weight", "bias")
    }
    path = renamed("gemma3_text", values, lambda name: prefix + name.removeprefix("model."), vision)
    files = open_files(path)
    assert files.config.family == "gemma3_text"
    (notice,) = files.notices
    assert "6 tensors are not used: vision_tower.layers.0" in notice
    check_logits("gemma3_text", 33, logits_of(path, "gemma3_text"))


def test_gemma_3_of_4b_leaves_out_most(renamed: Callable[..., Path]) -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    config = config_from_hf({"model_type": "gemma3", "text_config": text}, open_safetensors(folder("gemma3_text")))
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.max_context, config.norm_eps, config.attention_scale) == (131_072, 1e-6, 1 / 16)
    local, full = config.layers[0], config.layers[5]
    assert (local.window, local.rope.theta, local.rope.position_scale) == (1024, 10_000.0, 1.0)
    assert (full.window, full.rope.theta, full.rope.position_scale) == (None, 1_000_000.0, 1 / 8)


@pytest.mark.parametrize("family", ["llama", "llama_linear", "phi3"])
def test_tensors_of_a_base_model(renamed: Callable[..., Path], family: str) -> None:
    path = renamed(family, values_of(family), lambda name: name.removeprefix("model."))
    check_logits(family, 33, logits_of(path, family))


def test_missing_tensors_are_named_as_usual(renamed: Callable[..., Path]) -> None:
    path = renamed("llama", values_of("llama"), lambda name: f"transformer.{name}")
    with pytest.raises(BadModelFile, match=r"tensor model\.embed_tokens\.weight is missing"):
        logits_of(path, "llama")


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("llama", {"max_context": 2048, "num_kv_heads": 4, "norm_eps": 1e-6}),
        ("mistral", {"max_context": 131_072, "num_kv_heads": 8, "norm_eps": 1e-6}),
        ("qwen2", {"max_context": 32_768, "num_kv_heads": 32, "norm_eps": 1e-6}),
        ("qwen3", {"max_context": 32_768, "num_kv_heads": 32, "norm_eps": 1e-6, "head_dim": 128}),
        ("gemma2", {"max_context": 8192, "num_kv_heads": 4, "head_dim": 256, "attention_scale": 1 / 16,
                    "attention_softcap": 50.0, "logit_softcap": 30.0, "activation": "gelu_tanh"}),
        ("phi3", {"max_context": 4096, "num_kv_heads": 4, "norm_eps": 1e-5}),
        ("smollm3", {"max_context": 32_768, "num_kv_heads": 4, "norm_eps": 1e-6}),
        ("olmo2", {"max_context": 2048, "num_kv_heads": 4, "norm_eps": 1e-5}),
        ("granite", {"max_context": 2048, "num_kv_heads": 4, "norm_eps": 1e-6, "attention_scale": 1.0}),
    ],
)  # fmt: skip
def test_what_is_left_out_is_the_default_of_transformers(family: str, values: dict[str, Any]) -> None:
    sizes = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "model_type"}
    heads = max(4, values["num_kv_heads"])  # so many KV heads need as many heads
    left_out = tuple(set(values_of(family, "config.legacy.json")) - sizes)
    config = config_of(family, {"num_attention_heads": heads}, without=left_out)
    assert {name: getattr(config, name) for name in values} == values
    thetas = {"smollm3": 2_000_000.0}
    assert config.layers[0].rope.theta == thetas.get(family, 10_000.0)


def test_a_window_that_is_left_out_and_one_that_is_null() -> None:
    long = {"max_position_embeddings": 32_768}
    assert config_of("mistral", long, without=("sliding_window",)).layers[0].window == 4096
    assert config_of("mistral", long | {"sliding_window": None}).layers[0].window is None


def test_windows_of_qwen_and_smollm3_where_they_are_used() -> None:
    used = {"use_sliding_window": True, "sliding_window": 32}
    windows = [layer.window for layer in config_of("qwen2", used | {"max_window_layers": 3}).layers]
    assert windows == [None, None, None, 32]
    windows = [layer.window for layer in config_of("smollm3", used, without=("layer_types",)).layers]
    assert windows == [None, None, None, 32]  # the layer without rope
    kinds = ["sliding_attention", "full_attention"] * 2
    assert [layer.window for layer in config_of("smollm3", used | {"layer_types": kinds}).layers] == [32, None] * 2


def test_layers_of_smollm3_without_rope_where_they_are_not_listed() -> None:
    for changes, expected in (({}, [1, 1, 1, 0]), ({"no_rope_layer_interval": 2}, [1, 0, 1, 0])):
        config = config_of("smollm3", changes, without=("no_rope_layers",))
        assert [layer.rope.position_scale for layer in config.layers] == expected


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert {layer.window for layer in config_of("mistral", {"sliding_window": 512}).layers} == {None}


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"model_type": "bert"}, "model_type is 'bert', a family that is not supported; the known"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "only ...ForCausalLM: models that write text"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}},
         "quantization_config.quant_method is 'gptq', a packing of weights that is not read; use the folder with the "
         "original weights, with --weights q8 or q4, or a GGUF"),
        ("qwen2", {"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ("qwen3", {"quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
        ("llama", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "'bitsandbytes'"),
        ("llama", {"hidden_act": "relu2"}, "hidden_act is 'relu2', which is not supported (only silu, gelu"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type is 'dynamic'"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types is 'chunked_attention'"),
    ],
)  # fmt: skip
def test_other_kinds_of_models_are_refused_by_name(family: str, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config_of(family, changes)
    message = str(caught.value)
    assert expected in message and f"{folder(family)}/config.json" in message and "\n" not in message


def test_the_known_families_are_listed() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config_of("llama", {"model_type": "bert"})
    assert str(caught.value).endswith(", ".join(sorted(HF_FAMILIES)))


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"model_type": None}, "model_type is missing"),
        ("llama", {"hidden_size": None}, "config.json: hidden_size is missing; fetch the file again"),
        ("llama", {"num_hidden_layers": 2**30}, "num_hidden_layers is 1073741824, expected a whole number from 1 to"),
        ("llama", {"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ("llama", {"rope_theta": 1.0}, "rope_theta is 1.0, expected a number above 1"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
                                    "low_freq_factor": 4.0, "high_freq_factor": 4.0}}, "more than low_freq_factor, 4"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor is missing"),
        ("phi3", {"partial_rotary_factor": 1.2}, "partial_rotary_factor is 1.2, expected a number up to 1"),
        ("phi3", {"partial_rotary_factor": 0.2}, "rope turns 3 columns of a head, expected an even number"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "expected one number for each of 4 layers"),
        ("gemma2", {"layer_types": ["full_attention"]}, "expected one kind for each of 4 layers"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(family: str, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        config_of(family, changes)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "config.legacy.json"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_odd_value_is_taken_or_refused_in_one_line(family: str, file: str) -> None:
    tensors = open_safetensors(folder(family))
    refused = 0
    for path in paths_of(values_of(family, file)):
        for odd in ODD:
            values = group = values_of(family, file)
            for key in path[:-1]:
                group = group[key]
            group[path[-1]] = odd
            try:
                config_from_hf(values, tensors)
            except GlasschatError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 50


def paths_of(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Where each value is, those in groups too."""
    return [
        (key, *rest)
        for key, value in values.items()
        for rest in [(), *(paths_of(value) if isinstance(value, Mapping) else [])]
    ]


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff", "[" * 100_000])
def test_a_config_json_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(BadModelFile, match=r"config\.json: .*fetch the model again") as caught:
        read_hf_config(tmp_path)
    assert "\n" not in str(caught.value)
