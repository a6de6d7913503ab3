"""Mixtures of experts: what descriptions say of them, how files hold them, and how they are split and quantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from inference.cpu.executor import NumpyExecutor
from inference.errors import BadModelFile
from inference.formats.safetensors import SafetensorsFile, open_safetensors
from inference.kv.choose import choose_layouts
from inference.models.config import Experts, ModelConfig
from inference.models.families import config_from_hf
from inference.plan.ops import ExpertMatmul
from inference.weights import Precision, WeightStore
from tests.inference.opening import open_numpy, open_webgpu, run_ids
from tests.inference.tiny_golden import check_logits, folder, golden

QWEN = folder("qwen3_moe")


def open_qwen(changes: dict[str, Any] | None = None) -> tuple[ModelConfig, SafetensorsFile]:
    """The tiny Qwen 3 MoE with other values in its config.json; None drops one."""
    values = json.loads((QWEN / "config.json").read_text()) | (changes or {})
    file = open_safetensors(QWEN)
    return config_from_hf({key: value for key, value in values.items() if value is not None}, file), file


@pytest.mark.parametrize("changes", [{}, {"num_local_experts": None, "num_experts": 4}], ids=["new", "old"])
def test_layers_say_what_their_experts_are(changes: dict[str, Any]) -> None:
    config, _ = open_qwen(changes)
    experts = Experts(count=4, per_token=2, intermediate_size=32, normalised=True)
    assert [layer.experts for layer in config.layers] == [experts, None, experts]
    assert config.intermediate_size == 128


def test_every_second_layer_may_be_a_mixture() -> None:
    config, _ = open_qwen({"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": None})
    assert [layer.experts is not None for layer in config.layers] == [False, True, False]
    assert config.layers[1].experts is not None and not config.layers[1].experts.normalised


def test_more_experts_a_token_than_there_are() -> None:
    with pytest.raises(BadModelFile, match=r"config\.json: 5 experts a token, expected at most 4"):
        open_qwen({"num_experts_per_tok": 5})


def test_a_tensor_of_one_expert_is_missing() -> None:
    config, file = open_qwen({"num_local_experts": 5})
    with pytest.raises(BadModelFile, match=r"layers\.0\.mlp\.gate\.weight has shape \(4, 64\), expected \(5, 64\)"):
        NumpyExecutor(config, WeightStore(file, config), choose_layouts(config, "auto"))
    config, file = open_qwen()
    del file.tensors["model.layers.2.mlp.experts.3.up_proj.weight"]  # type: ignore[attr-defined]
    with pytest.raises(BadModelFile, match=r"model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight is missing"):
        NumpyExecutor(config, WeightStore(file, config), choose_layouts(config, "auto"))


def write_gguf(path: Path) -> Path:
    """The tiny Qwen 3 MoE as a GGUF file, with the names and shapes of llama.cpp's converter."""
    config, file = open_qwen()
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.layers[0].rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(32)
    maps = [gguf.get_tensor_name_map(kind, 3) for kind in (gguf.MODEL_ARCH.QWEN3MOE, gguf.MODEL_ARCH.QWEN3)]

    def rename(name: str) -> str:
        return next(found for names in maps if (found := names.get_name(name, (".weight",))))

    stacks: dict[str, list[np.ndarray]] = {}
    for name, info in file.tensors.items():
        array = (file.data(name).view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
        parts = name.split(".")
        if "experts" in parts:
            stacks.setdefault(".".join([*parts[:5], parts[6], parts[7]]), []).append(array)
        else:
            writer.add_tensor(rename(name), array)
    for name, arrays in stacks.items():
        writer.add_tensor(rename(name), np.stack(arrays).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_stacks_experts_in_three_dimensions(tmp_path: Path) -> None:
    executor = open_numpy(write_gguf(tmp_path / "moe.gguf"))
    assert executor.config.layers == open_qwen()[0].layers and executor.config.family == "qwen3_moe"
    logits = run_ids(executor, golden("qwen3_moe")["ids_33"].tolist())
    assert logits is not None
    check_logits("qwen3_moe", 33, logits)


@pytest.mark.parametrize(("precision", "worst"), [("q8", 0.02), ("q4", 0.35)])
def test_quantised_at_load(precision: Precision, worst: float) -> None:
    config, file = open_qwen()
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
    executor = open_webgpu(QWEN / "config.json")
    rows = {row.name: row for row in executor.plan_rows("decode") if row.layer == 0}
    executor.close()
    assert (rows["feed_forward.route"].kind, rows["feed_forward.route"].shape) == ("route", "2 of 4")
    gate_up, down = rows["feed_forward.expert_gate_up"], rows["feed_forward.expert_down"]
    assert (gate_up.shape, gate_up.weight) == ("2 of 4 x 64 x 64", "bf16")
    assert (down.shape, down.dispatches) == ("2 of 4 x 32 x 64", 1)
    assert all(row.variant.startswith("experts_") and "one row at a time" in row.reason for row in (gate_up, down))
    assert rows["feed_forward.norm"].notes == ("norm_into_matmul: its output is read by another kind of op",)


@pytest.mark.gpu
def test_golden_on_webgpu() -> None:
    """Logits of many rows, which take experts of their own, and greedy tokens one at a time."""
    reference = golden("qwen3_moe")
    executor = open_webgpu(QWEN / "config.json")
    for size in (1, 33, 150):
        logits = run_ids(executor, reference[f"ids_{size}"].tolist())
        assert logits is not None
        check_logits("qwen3_moe", size, logits)
    ids, expected = reference["greedy_a_prompt"].tolist(), reference["greedy_a"].tolist()
    cache = executor.new_cache(len(ids) + len(expected))
    found: list[int] = []
    for _ in expected:
        last = executor.forward(cache, found[-1:] or ids, "last")
        assert last is not None
        found.append(int(last.argmax()))
    executor.close()
    assert found == expected
