"""Memory for activations: no op writes over what it reads, nor over what is still to be read."""

from __future__ import annotations

from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gpu.program import ITEMSIZE, assign_slots
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.plan.build import build
from inference.plan.fuse import REWRITES, fuse
from inference.plan.ops import DType, Plan

NAMES = ("attention.q", "attention.k", "attention.v", "feed_forward.gate", "feed_forward.up")


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    head_dim = draw(st.sampled_from([4, 16]))
    heads = draw(st.sampled_from([1, 2, 4]))
    rope = RopeConfig(1e4, head_dim, draw(st.booleans()))
    return ModelConfig(
        family="any",
        name="any",
        hidden_size=draw(st.sampled_from([8, 64])),
        intermediate_size=draw(st.sampled_from([8, 128])),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([1, heads])),
        head_dim=head_dim,
        vocab_size=100,
        max_context=64,
        norm_eps=1e-5,
        activation="silu",
        attention_scale=1.0,
        layers=(LayerConfig(None, rope),) * draw(st.integers(1, 3)),
        weights={},
        logit_softcap=draw(st.sampled_from([None, 30.0])),
        residual_scale=draw(st.sampled_from([1.0, 0.5])),
        qk_norm=draw(st.sampled_from(["none", "head", "projection"])),
        pre_norms=draw(st.booleans()),
        post_norms=draw(st.booleans()),
        biases=frozenset(draw(st.sets(st.sampled_from(NAMES)))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan of any model, for any rows, with any of the rewrites applied and any weights that cannot be stacked."""
    config = draw(configs())
    logits: Literal["last", "all", "none"] = draw(st.sampled_from(["last", "all", "none"]))
    dtype: DType = draw(st.sampled_from(["f32", "f16"]))
    plan = build(config, draw(st.sampled_from([1, 8])), logits, logits == "last" and draw(st.booleans()), dtype)
    odd = draw(st.sampled_from(NAMES))
    formats = {
        source: "q4_k" if source.endswith(odd) and draw(st.booleans()) else "q8_0"
        for op in plan.ops
        for ref in op.weights
        for source in ref.sources
    }
    ops = list(plan.ops)
    if draw(st.booleans()):
        return fuse(plan, formats)
    for rewrite in REWRITES:
        if draw(st.booleans()):
            ops = rewrite.apply(ops, formats)
    return Plan(tuple(ops), plan.rows, plan.logits, plan.kv_dtype)


@settings(max_examples=200)
@given(plans())
def test_slots_hold_every_tensor_as_long_as_it_is_read(plan: Plan) -> None:
    slots, sizes = assign_slots(plan)
    contents: dict[int, str] = {}
    for op in plan.ops:
        read = {tensor.storage.name for tensor in op.inputs}
        for name in read:
            assert contents[slots[name]] == name, f"{op.name} reads {name}, which was written over"
        output = op.output.storage
        assert slots[output.name] not in {slots[name] for name in read}, f"{op.name} writes over its own input"
        assert sizes[slots[output.name]] >= output.rows * output.columns * ITEMSIZE[output.dtype]
        contents[slots[output.name]] = output.name
    assert set(slots.values()) == set(range(len(sizes)))


@given(plans())
def test_slots_are_fewer_than_tensors(plan: Plan) -> None:
    slots, sizes = assign_slots(plan)
    assert len(sizes) <= 8
    assert assign_slots(plan) == (slots, sizes)
