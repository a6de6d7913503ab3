"""Each fusion: what it makes of a plan, that the numbers stay, and the reason where it does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from inference.cpu.executor import NumpyExecutor
from inference.models.config import ModelConfig
from inference.plan import fuse as fusion
from inference.plan.build import build
from inference.plan.fuse import REWRITES, common_format, fuse
from inference.plan.ops import KvAppend, Matmul, Op, Plan, RmsNorm
from tests.inference.gguf_variants import rewrite
from tests.inference.opening import open_numpy, open_store, run_ids

Tiny = Callable[[str], Path]
FAMILIES = ["llama", "gemma3_text"]
IDS = [1, 17, 300, 511, 8, 8, 90, 401, 33]
QuantType = gguf.GGMLQuantizationType


def model(tiny: Tiny, family: str) -> Path:
    return tiny(family) / "gguf" / "model-f16.gguf"


NEEDS = {"activation_into_matmul": ("merge_gate_up",)}
"""Rewrites that act on what others made. lora_into_matmul acts on adapters alone: see tests/inference/lora."""


def only(*names: str) -> tuple[fusion.Rewrite, ...]:
    return tuple(rewrite for rewrite in REWRITES if rewrite.name in names)


def rewritten(config: ModelConfig, name: str, formats: Mapping[str, str], rows: int = 4) -> Plan:
    """The plan of `config` after that one rewrite, and those that it needs."""
    plan = build(config, rows, "all")
    ops = list(plan.ops)
    for step in only(name, *NEEDS.get(name, ())):
        ops = step.apply(ops, formats)
    return replace(plan, ops=tuple(ops))


def in_layer(plan: Plan, layer: int = 0) -> list[Op]:
    return [op for op in plan.ops if op.layer == layer]


def named(plan: Plan, name: str, layer: int | None = 0) -> Op:
    (op,) = (op for op in plan.ops if op.name == name and op.layer == layer)
    return op


def same_numbers(path: Path, rewrites: tuple[fusion.Rewrite, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of the plan with these rewrites equal those without any, for many rows and for single ones."""
    plain = open_numpy(path, fused=False)
    monkeypatch.setattr(fusion, "REWRITES", rewrites)
    fused = open_numpy(path)
    assert len(fused.plan(1, "all").ops) < len(plain.plan(1, "all").ops)
    expected, found = run_ids(plain, IDS), run_ids(fused, IDS)
    assert expected is not None and found is not None
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.ptp(expected) > 1  # logits that say something
    one_by_one = one_row_logits(fused)
    np.testing.assert_allclose(one_by_one, one_row_logits(plain), atol=2e-5)
    np.testing.assert_allclose(one_by_one, expected, atol=2e-5)


def one_row_logits(executor: NumpyExecutor) -> np.ndarray:
    cache = executor.new_cache(len(IDS))
    rows = [executor.forward(cache, [token], "last") for token in IDS]
    return np.stack([row for row in rows if row is not None])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [rewrite.name for rewrite in REWRITES if rewrite.name != "lora_into_matmul"])
def test_one_rewrite_alone_keeps_the_numbers(
    tiny: Tiny, family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_numbers(model(tiny, family), only(name, *NEEDS.get(name, ())), monkeypatch)


def test_a_norm_of_many_rows_stays_an_op(tiny: Tiny) -> None:
    """And says why."""
    config, _ = open_store(model(tiny, "llama"))
    for rows in (fusion.MOST_NORM_ROWS, fusion.MOST_NORM_ROWS + 1):
        norms = [op for op in rewritten(config, "norm_into_matmul", {}, rows).ops if op.kind == "rmsnorm"]
        assert bool(norms) == (rows > fusion.MOST_NORM_ROWS)
        assert all(f"of {rows} rows it is faster by itself" in op.notes[-1] for op in norms)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_rewrites_keep_the_numbers(tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_numbers(model(tiny, family), REWRITES, monkeypatch)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_1", "Q8_0"), ("Q5_0", "Q8_0", "Q4_0"), ("F16", "F32", "F32")])
def test_mixed_formats_keep_the_numbers(
    tiny: Tiny, family: str, kinds: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    types = {
        f"blk.{layer}.{part}.weight": QuantType[kind]
        for layer in range(4)
        for part, kind in zip(parts, (*kinds, *kinds[1:]), strict=True)
    }
    same_numbers(rewrite(model(tiny, family), tmp_path / "mixed.gguf", types=types), REWRITES, monkeypatch)


def test_merge_qkv(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    plan = rewritten(config, "merge_qkv", store.formats)
    merged = named(plan, "attention.qkv")
    assert merged.weights[0].sources == tuple(f"layers.0.attention.{part}" for part in "qkv")
    assert merged.weights[0].rows == merged.output.columns == config.q_size + 2 * config.kv_size
    assert merged.notes == ("merge_qkv: attention.q, attention.k, attention.v",)
    q, k = (named(plan, f"attention.{part}_rope").inputs[0] for part in "qk")
    v = named(plan, "attention.kv_append").inputs[1]
    assert [(view.storage, view.first_column, view.columns) for view in (q, k, v)] == [
        (merged.output, 0, 64), (merged.output, 64, 32), (merged.output, 96, 32)
    ]  # fmt: skip
    assert len(in_layer(plan)) == 16 - 2


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [("q4_k", "q4_k", "q6_k"), ("q4_1", "q4_1", "q8_0"), ("f16", "f16", "f32"), ("q5_0", "q5_1", "q5_0")],
)
def test_formats_that_cannot_be_stacked_leave_a_reason(tiny: Tiny, q: str, k: str, v: str) -> None:
    config, store = open_store(model(tiny, "llama"))
    formats = dict(store.formats) | {
        "layers.1.attention.q": q, "layers.1.attention.k": k, "layers.1.attention.v": v
    }  # fmt: skip
    plan = rewritten(config, "merge_qkv", formats)
    assert [op.name for op in in_layer(plan, 1)] == [op.name for op in in_layer(build(config, 4, "all"), 1)]
    reason = f"merge_qkv: not applied, the formats cannot be stacked (q is {q}, k is {k}, v is {v})"
    assert [named(plan, f"attention.{part}", 1).notes for part in "qkv"] == [(reason,)] * 3
    assert named(plan, "attention.qkv", 0)  # the layers around it are merged all the same


def test_formats_of_one_scale_are_widened_to_the_widest(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    formats = dict(store.formats) | {
        "layers.0.attention.q": "q5_0", "layers.0.attention.k": "iq4_nl", "layers.0.attention.v": "q4_0"
    }  # fmt: skip
    merged = named(rewritten(config, "merge_qkv", formats), "attention.qkv")
    assert common_format(merged.weights[0].sources, formats) == "q8_0"


def test_merge_gate_up(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "gemma3_text"))
    merged = named(rewritten(config, "merge_gate_up", store.formats), "feed_forward.gate_up")
    assert (merged.weights[0].rows, merged.output.columns) == (256, 256)
    plan = rewritten(config, "activation_into_matmul", store.formats)
    merged = named(plan, "feed_forward.gate_up")
    assert merged.weights[0].sources == ("layers.0.feed_forward.gate", "layers.0.feed_forward.up")
    assert (merged.weights[0].rows, merged.output.columns) == (256, 128)
    assert merged.attributes == Matmul(activation="gelu_tanh")
    assert named(plan, "feed_forward.down").inputs == (merged.output,)
    assert not any(op.kind == "activation_gate" for op in plan.ops)


def test_gate_and_up_that_cannot_be_stacked_keep_their_activation(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    plan = rewritten(config, "activation_into_matmul", dict(store.formats) | {"layers.2.feed_forward.up": "q6_k"})
    assert [op.kind for op in in_layer(plan, 2)].count("activation_gate") == 1
    assert "up is q6_k" in named(plan, "feed_forward.gate", 2).notes[0]


def test_norm_into_matmul(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    plan = rewritten(config, "norm_into_matmul", store.formats)
    assert not any(op.kind == "rmsnorm" for op in plan.ops)
    for name in ("attention.q", "attention.k", "attention.v"):
        op = named(plan, name)
        assert op.attributes == Matmul(norm_eps=config.norm_eps)
        assert op.inputs == (plan.ops[0].output,)
        assert op.weights[1].sources == ("layers.0.attention.norm",)
    assert named(plan, "lm_head", None).notes == ("norm_into_matmul: final_norm",)


def test_norms_of_heads_and_results_stay_ops(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "gemma3_text"))
    plan = rewritten(config, "norm_into_matmul", store.formats)
    assert [op.name for op in in_layer(plan) if op.kind == "rmsnorm"] == [
        "attention.q_norm", "attention.k_norm", "attention.post_norm", "feed_forward.post_norm"
    ]  # fmt: skip


def test_a_norm_read_by_another_kind_of_op_says_why_it_stays(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    plan = build(config, 1, "all")
    norm = named(plan, "attention.norm")
    extra = replace(named(plan, "attention.residual"), inputs=(norm.output, plan.ops[0].output))
    ops = [extra if op.name == "attention.residual" and op.layer == 0 else op for op in plan.ops]
    (kept,) = (
        op for op in fusion.norm_into_matmul(ops, store.formats) if op.name == "attention.norm" and op.layer == 0
    )
    assert kept.notes == ("norm_into_matmul: its output is read by another kind of op",)


def test_residual_into_producer(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    plan = rewritten(config, "residual_into_producer", store.formats)
    assert not any(op.kind == "add" for op in plan.ops)
    output = named(plan, "attention.output")
    assert output.attributes == Matmul(residual=True)
    assert output.inputs[1] == plan.ops[0].output
    assert output.output.name == "layers.0.attention.residual"
    gemma, gemma_store = open_store(model(tiny, "gemma3_text"))
    post_norm = named(rewritten(gemma, "residual_into_producer", gemma_store.formats), "attention.post_norm")
    assert post_norm.attributes == RmsNorm(gemma.norm_eps, gemma.hidden_size, residual=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("other producer", "the operand is not made by a matmul or norm"),
        ("second reader", "attention.output is read elsewhere too"),
    ],
)
def test_a_residual_that_stays_says_why(tiny: Tiny, change: str, reason: str) -> None:
    config, store = open_store(model(tiny, "llama"))
    ops = list(build(config, 1, "all").ops)
    plan = Plan(tuple(ops), 1, "all", "f32")
    add = named(plan, "attention.residual")
    if change == "other producer":
        ops[ops.index(add)] = replace(add, inputs=(named(plan, "attention").output, add.inputs[1]))
    else:
        norm = named(plan, "feed_forward.norm")
        ops[ops.index(norm)] = replace(norm, inputs=(named(plan, "attention.output").output,))
    (kept,) = (op for op in fusion.residual_into_producer(ops, store.formats) if op.output == add.output)
    assert kept.kind == "add" and kept.notes == (f"residual_into_producer: {reason}",)


@pytest.mark.parametrize(("family", "weights"), [("llama", 0), ("gemma3_text", 2)])
def test_rope_into_append(tiny: Tiny, family: str, weights: int) -> None:
    config, store = open_store(model(tiny, family))
    plan = rewritten(config, "rope_into_append", store.formats)
    for layer in range(config.num_layers):
        append = named(plan, "attention.kv_append", layer)
        assert isinstance(append.attributes, KvAppend)
        assert append.attributes.rope == config.layers[layer].rope
        assert append.attributes.qk_norm_eps == (config.norm_eps if weights else None)
        assert [tensor.name for tensor in append.inputs] == [f"layers.{layer}.attention.{part}" for part in "qkv"]
        assert named(plan, "attention", layer).inputs == (append.output,)
        assert len(append.weights) == weights
    assert not any(op.kind == "rope" or op.name.endswith(("q_norm", "k_norm")) for op in plan.ops)


@pytest.mark.parametrize(("family", "ops"), [("llama", 6), ("gemma3_text", 8)])
def test_ops_a_layer_after_all_rewrites(tiny: Tiny, family: str, ops: int) -> None:
    config, store = open_store(model(tiny, family))
    fused = fuse(build(config, 1, "last", sample=True), store.formats)
    assert [len(in_layer(fused, layer)) for layer in range(config.num_layers)] == [ops] * config.num_layers
    assert fused.rows == 1 and fused.logits == "last"


def test_no_note_is_left_out_of_the_plan_by_a_later_rewrite(tiny: Tiny) -> None:
    config, store = open_store(model(tiny, "llama"))
    fused = fuse(build(config, 1, "last"), store.formats)
    assert named(fused, "attention.qkv").notes == (
        "merge_qkv: attention.q, attention.k, attention.v",
        "norm_into_matmul: attention.norm",
    )


def test_biases_are_stacked_like_their_weights(tiny: Tiny) -> None:
    config, store = open_store(tiny("qwen2") / "config.json")
    merged = named(rewritten(config, "merge_qkv", store.formats), "attention.qkv")
    weights, biases = merged.weights
    assert biases.sources == tuple(f"{source}.bias" for source in weights.sources)
    assert (biases.rows, biases.columns) == (weights.rows, 1)
    assert merged.attributes == Matmul(bias=True)


def test_a_bias_on_some_of_the_projections_keeps_them_apart(tiny: Tiny) -> None:
    config, store = open_store(tiny("qwen2") / "config.json")
    plan = rewritten(replace(config, biases=frozenset({"attention.q"})), "merge_qkv", store.formats)
    reason = "merge_qkv: not applied, only some of them have a bias"
    assert [named(plan, f"attention.{part}").notes for part in "qkv"] == [(reason,)] * 3


def test_norms_of_whole_projections_stay_ops(tiny: Tiny) -> None:
    """The append norms single heads alone."""
    config, store = open_store(tiny("olmo2") / "config.json")
    append = named(rewritten(config, "rope_into_append", store.formats), "attention.kv_append")
    assert isinstance(append.attributes, KvAppend)
    assert (append.attributes.qk_norm_eps, append.weights) == (None, ())
    assert [tensor.name for tensor in append.inputs] == [
        f"layers.0.attention.{part}" for part in ("q_norm", "k_norm", "v")
    ]


def test_the_residual_s_scale_goes_with_it(tiny: Tiny) -> None:
    config, store = open_store(tiny("granite") / "config.json")
    plan = rewritten(config, "residual_into_producer", store.formats)
    assert named(plan, "feed_forward.down").attributes == Matmul(scale=0.7, residual=True)
    scaled = replace(open_store(model(tiny, "gemma3_text"))[0], residual_scale=0.5)
    add = named(rewritten(scaled, "residual_into_producer", store.formats), "attention.residual")
    assert add.notes == ("residual_into_producer: a norm does not scale its result",)


@pytest.mark.parametrize("family", ["llama_linear", "olmo2", "granite", "phi3"])
def test_all_rewrites_keep_the_numbers_of_other_kinds_of_layers(
    tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_numbers(tiny(family) / "config.json", REWRITES, monkeypatch)
