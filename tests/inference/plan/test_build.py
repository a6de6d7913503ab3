"""The unfused plan: which ops it has, in which order, with which shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.models.config import ModelConfig
from inference.plan.build import build
from inference.plan.ops import Add, Attention, Embed, Matmul, Plan, Rope
from tests.inference.opening import open_store
from tests.inference.tiny_golden import FAMILIES

Tiny = Callable[[str], Path]

LLAMA_LAYER = [
    "rmsnorm", "matmul", "matmul", "matmul", "rope", "rope", "kv_append", "attention", "matmul", "add",
    "rmsnorm", "matmul", "matmul", "activation_gate", "matmul", "add",
]  # fmt: skip
GEMMA_LAYER = [
    "rmsnorm", "matmul", "matmul", "matmul", "rmsnorm", "rmsnorm", "rope", "rope", "kv_append", "attention", "matmul",
    "rmsnorm", "add", "rmsnorm", "matmul", "matmul", "activation_gate", "matmul", "rmsnorm", "add",
]  # fmt: skip


@pytest.fixture
def config(tiny: Tiny) -> ModelConfig:
    return open_store(tiny("llama") / "gguf" / "model-f16.gguf")[0]


OLMO_2_LAYER = [
    "matmul", "matmul", "matmul", "rmsnorm", "rmsnorm", "rope", "rope", "kv_append", "attention", "matmul",
    "rmsnorm", "add", "matmul", "matmul", "activation_gate", "matmul", "rmsnorm", "add",
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "layer_kinds"), [("llama", LLAMA_LAYER), ("gemma3_text", GEMMA_LAYER), ("olmo2", OLMO_2_LAYER)]
)
def test_one_op_for_each_step_of_the_textbook(tiny: Tiny, family: str, layer_kinds: list[str]) -> None:
    config, _ = open_store(tiny(family) / "config.json")
    plan = build(config, rows=5, logits="all")
    kinds = [op.kind for op in plan.ops]
    assert kinds == ["embed", *layer_kinds * config.num_layers, "rmsnorm", "lm_head"]
    for layer in range(config.num_layers):
        assert [op.kind for op in plan.ops if op.layer == layer] == layer_kinds


def test_a_softcap_adds_one_op() -> None:
    plain, capped = (build(small_config(cap), rows=1, logits="last") for cap in (None, 30.0))
    assert Counter(op.kind for op in capped.ops) - Counter(op.kind for op in plain.ops) == Counter(softcap=1)
    assert capped.ops[-1].kind == "softcap"


@pytest.mark.parametrize(
    ("rows", "logits", "sample", "tail", "head_rows"),
    [
        (1, "last", False, ["rmsnorm", "lm_head"], 1),
        (1, "last", True, ["rmsnorm", "lm_head", "sample"], 1),
        (9, "last", False, ["last_row", "rmsnorm", "lm_head"], 1),
        (9, "last", True, ["last_row", "rmsnorm", "lm_head", "sample"], 1),
        (9, "all", False, ["rmsnorm", "lm_head"], 9),
        (9, "none", False, [], 0),
    ],
)
def test_the_head_is_computed_for_the_wanted_rows(
    config: ModelConfig, rows: int, logits: str, sample: bool, tail: list[str], head_rows: int
) -> None:
    plan = build(config, rows, logits, sample)  # type: ignore[arg-type]
    after_layers = plan.ops[1 + len(LLAMA_LAYER) * config.num_layers :]
    assert [op.kind for op in after_layers] == tail
    assert [op.output.rows for op in after_layers if op.kind == "lm_head"] == ([head_rows] if head_rows else [])
    assert (plan.rows, plan.logits) == (rows, logits)


def test_sampling_needs_logits(config: ModelConfig) -> None:
    with pytest.raises(ValueError, match="needs logits"):
        build(config, 4, "none", sample=True)
    assert build(config, 4, "all", sample=True).ops[-1].output.rows == 4


def test_every_input_is_made_before_it_is_read(config: ModelConfig) -> None:
    plan = build(config, 3, "last", sample=True)
    made: set[str] = set()
    for op in plan.ops:
        assert {tensor.name for tensor in op.inputs} <= made
        assert op.output.name not in made
        made.add(op.output.name)


def test_dtypes(config: ModelConfig) -> None:
    plan = build(config, 4, "last", sample=True, dtype="f16", kv_dtype="f16")
    assert plan.kv_dtype == "f16"
    f32 = {op.name for op in plan.ops if op.output.dtype == "f32"}
    # The residual stream and the logits stay in f32.
    stream = {"embedding", "attention.residual", "feed_forward.residual", "last_row"}
    assert f32 == {*stream, "lm_head", "sample"}


def test_attributes_come_from_the_config(tiny: Tiny) -> None:
    config, _ = open_store(tiny("gemma3_text") / "gguf" / "model-f16.gguf")
    plan = build(config, 1, "last")
    assert plan.ops[0].attributes == Embed(8.0)
    windows = [op.attributes.window for op in plan.ops if isinstance(op.attributes, Attention)]
    assert windows == [layer.window for layer in config.layers]
    for layer, settings in enumerate(config.layers):
        ropes = [op.attributes.rope for op in plan.ops if op.layer == layer and isinstance(op.attributes, Rope)]
        assert ropes == [settings.rope] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_named_once_but_for_the_tied_ones(tiny: Tiny, family: str) -> None:
    """What the config says is stored is what the plan reads, neither more nor less."""
    config, _ = open_store(tiny(family) / "config.json")
    plan: Plan = build(config, 1, "last")
    counts = Counter(source for op in plan.ops for ref in op.weights for source in ref.sources)
    assert set(counts) == set(config.weights) and set(counts.values()) == {1}


def test_multipliers_and_biases(tiny: Tiny) -> None:
    config, _ = open_store(tiny("granite") / "config.json")
    plan = build(config, 1, "last")
    assert plan.ops[0].attributes == Embed(1.5) and plan.ops[-1].attributes == Matmul(scale=2.0)
    assert {op.attributes for op in plan.ops if op.kind == "add"} == {Add(0.7)}
    biased = build(replace(config, biases=frozenset({"attention.output"})), 1, "last")
    for op in biased.ops:
        if op.kind == "matmul":
            expected = op.name == "attention.output"
            assert op.attributes == Matmul(bias=expected) and len(op.weights) == 1 + expected


def small_config(softcap: float | None) -> ModelConfig:
    from inference.models.config import LayerConfig, RopeConfig

    rope = RopeConfig(1e4, 4, False)
    return ModelConfig(
        family="test", name="test", hidden_size=8, intermediate_size=8, num_heads=2, num_kv_heads=1, head_dim=4,
        vocab_size=16, max_context=32, norm_eps=1e-5, activation="silu", attention_scale=0.5,
        layers=(LayerConfig(None, rope),), weights={}, logit_softcap=softcap,
    )  # fmt: skip
