"""Mixtures of experts: what descriptions say of them, how files hold them, and what they give on both devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from inference.cpu.executor import NumpyExecutor
from inference.errors import BadModelFile
from inference.formats.safetensors import SafetensorsFile, open_safetensors
from inference.kv.choose import choose_layouts
from inference.models.config import ClampedSwiglu, Experts, ModelConfig
from inference.models.families import config_from_hf
from inference.plan.ops import ExpertMatmul
from inference.weights import Precision, WeightStore
from tests.inference.convert import convert, read_tensors
from tests.inference.opening import open_numpy, open_store, open_webgpu, run_ids
from tests.inference.tiny_golden import check_logits, folder, golden

MIXTURES = ("qwen3_moe", "gpt_oss")


def open_tiny(family: str, changes: dict[str, Any] | None = None) -> tuple[ModelConfig, SafetensorsFile]:
    """A tiny model with other values in its config.json; None drops one."""
    values = json.loads((folder(family) / "config.json").read_text()) | (changes or {})
    file = open_safetensors(folder(family))
    return config_from_hf({key: value for key, value in values.items() if value is not None}, file), file


@pytest.mark.parametrize("changes", [{}, {"num_local_experts": None, "num_experts": 4}], ids=["new", "old"])
def test_qwen_layers_say_what_their_experts_are(changes: dict[str, Any]) -> None:
    config, _ = open_tiny("qwen3_moe", changes)
    experts = Experts(count=4, per_token=2, intermediate_size=32, normalised=True)
    assert [layer.experts for layer in config.layers] == [experts, None, experts]
    assert config.intermediate_size == 128


def test_every_second_layer_may_be_a_mixture() -> None:
    config, _ = open_tiny("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": None})
    assert [layer.experts is not None for layer in config.layers] == [False, True, False]
    assert config.layers[1].experts is not None and not config.layers[1].experts.normalised


def test_gpt_oss_takes_what_real_folders_leave_out() -> None:
    absent = dict.fromkeys(("layer_types", "swiglu_alpha", "swiglu_limit", "attention_bias"))
    config, _ = open_tiny("gpt_oss", absent)
    assert [layer.window for layer in config.layers] == [32, None, 32]
    assert config.activation == ClampedSwiglu(alpha=1.702, limit=7.0)
    assert config.attention_sinks and "attention.output" in config.biases


@pytest.mark.parametrize("family", MIXTURES)
def test_more_experts_a_token_than_there_are(family: str) -> None:
    with pytest.raises(BadModelFile, match=r"config\.json: 5 experts a token, expected at most 4"):
        open_tiny(family, {"num_experts_per_tok": 5})


def check_weights(config: ModelConfig, file: SafetensorsFile) -> None:
    """What an executor checks when it is made."""
    NumpyExecutor(config, WeightStore(file, config), choose_layouts(config, "auto"))


def test_tensors_that_are_not_as_the_config_says() -> None:
    with pytest.raises(BadModelFile, match=r"layers\.0\.mlp\.gate\.weight has shape \(4, 64\), expected \(5, 64\)"):
        check_weights(*open_tiny("qwen3_moe", {"num_local_experts": 5}))
    with pytest.raises(BadModelFile, match=r"gate_up_proj has shape \(4, 64, 64\), expected \(4, 64, 48\)"):
        check_weights(*open_tiny("gpt_oss", {"intermediate_size": 24}))
    config, file = open_tiny("qwen3_moe")
    del file.tensors["model.layers.2.mlp.experts.3.up_proj.weight"]  # type: ignore[attr-defined]
    with pytest.raises(BadModelFile, match=r"model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight is missing"):
        check_weights(config, file)


def test_gpt_oss_from_gguf(tmp_path: Path) -> None:
    """With the tiny model's own limit, which GGUF has no field for, it is the model of the golden."""
    config, _ = open_tiny("gpt_oss")
    store_config, store = open_store(convert("gpt_oss", tmp_path / "model.gguf"))
    assert store_config.activation == ClampedSwiglu(alpha=1.702, limit=7.0)
    assert (store_config.layers, store_config.biases) == (config.layers, config.biases)
    limited = replace(store_config, activation=config.activation)
    executor = NumpyExecutor(limited, store, choose_layouts(limited, "auto"))
    for size in (33, 150):
        logits = run_ids(executor, golden("gpt_oss")[f"ids_{size}"].tolist())
        assert logits is not None
        check_logits("gpt_oss", size, logits)


@pytest.mark.parametrize(("precision", "worst"), [("q8", 0.02), ("q4", 0.35)])
@pytest.mark.parametrize("family", MIXTURES)
def test_quantised_at_load(family: str, precision: Precision, worst: float) -> None:
    config, file = open_tiny(family)
    store = WeightStore(file, config, precision)
    form = {"q8": "q8_0", "q4": "q4_1"}[precision]
    assert {store.formats[f"layers.0.feed_forward.expert_{part}"] for part in ("gate", "up", "down")} == {form}
    # A rounded router would choose other experts.
    assert store.formats["layers.0.feed_forward.router"] == "bf16"
    exact = WeightStore(file, config)
    executor = NumpyExecutor(config, store, choose_layouts(config, "auto"))
    for op in executor.plan(1, "last").ops:
        if isinstance(op.attributes, ExpertMatmul):
            expected = exact.load(op.weights[0]).dequantize()
            found = store.load(op.weights[0]).dequantize()
            assert 0 < np.abs(found - expected).max() <= worst * np.abs(expected).max()


@pytest.mark.gpu
def test_the_plan_shows_the_experts() -> None:
    executor = open_webgpu(folder("qwen3_moe") / "config.json")
    rows = {row.name: row for row in executor.plan_rows("decode") if row.layer == 0}
    executor.close()
    assert (rows["feed_forward.route"].kind, rows["feed_forward.route"].shape) == ("route", "2 of 4")
    gate_up, down = rows["feed_forward.expert_gate_up"], rows["feed_forward.expert_down"]
    assert (gate_up.shape, gate_up.weight) == ("2 of 4 x 64 x 64", "bf16")
    assert (down.shape, down.dispatches) == ("2 of 4 x 32 x 64", 1)
    assert all(row.variant.startswith("experts_") and "one row at a time" in row.reason for row in (gate_up, down))
    assert rows["feed_forward.norm"].notes == ("norm_into_matmul: its output is read by another kind of op",)


@pytest.mark.gpu
@pytest.mark.parametrize(("kv", "tolerance"), [("contiguous", 1e-3), ("tiered", 1e-3), ("bdpa", 0.1)])
def test_sinks_on_other_layouts(kv: str, tolerance: float) -> None:
    """bdpa stores keys in 8 bits; the others of these store them as they are."""
    reference = golden("gpt_oss")
    executor = open_webgpu(folder("gpt_oss") / "config.json", kv)
    logits = run_ids(executor, reference["ids_33"].tolist())
    executor.close()
    assert logits is not None
    assert np.abs(logits[:, reference["cols"]] - reference["logits_33"]).max() <= tolerance


def write_mxfp4(target: Path) -> tuple[Path, Path]:
    """Two folders of the tiny GPT-OSS with random experts: packed as MXFP4, and the same numbers as floats."""
    rng = np.random.default_rng(1)
    floats = read_tensors(folder("gpt_oss"))
    packed = dict(floats)
    for name, (experts, columns, rows) in {
        key: array.shape for key, array in floats.items() if key.endswith(("experts.gate_up_proj", "experts.down_proj"))
    }.items():
        blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = rng.integers(121, 124, (experts, rows, columns // 32), np.uint8)
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(experts, rows, columns)
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7] * np.where(codes & 8, -1, 1)
        exact = values * np.exp2(scales.astype(np.float32) - 127).repeat(32, axis=-1)
        floats[name] = np.ascontiguousarray(exact.swapaxes(1, 2).astype(np.float32))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del packed[name]
    config = json.loads((folder("gpt_oss") / "config.json").read_text())
    paths = target / "packed", target / "floats"
    for path, tensors in zip(paths, (packed, floats), strict=True):
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        extra = {"quantization_config": {"quant_method": "mxfp4"}} if tensors is packed else {}
        (path / "config.json").write_text(json.dumps(config | extra))
    return paths


@pytest.mark.parametrize("device", ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_experts_packed_as_mxfp4(tmp_path: Path, device: str) -> None:
    ids = golden("gpt_oss")["ids_33"].tolist()
    packed, floats = write_mxfp4(tmp_path)
    _, store = open_store(packed / "config.json")
    assert store.formats["layers.0.feed_forward.expert_up"] == "mxfp4" and not store.unused
    expected = run_ids(open_numpy(floats / "config.json"), ids)
    executor = (open_numpy if device == "cpu" else open_webgpu)(packed / "config.json")
    found = run_ids(executor, ids)
    executor.close()
    assert found is not None and expected is not None
    np.testing.assert_allclose(found, expected, atol=1e-4)
