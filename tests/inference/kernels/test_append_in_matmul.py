"""The append that the matmul of q, k and v does on the way, against NumPy; and when it is left to its own dispatch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.formats.planar import from_dense
from inference.kernels import append_in_matmul, matmul, simple
from inference.kernels.base import Decision, KernelPreference
from inference.kernels.dispatch import STATE, Binding, CacheLayout, Dispatch, KernelContext, tensor
from inference.models.config import RopeConfig
from inference.plan.ops import DType, KvAppend, Matmul, Op, TensorRef, WeightRef
from inference.rope import rope_table
from tests.inference.kernels.harness import Gpu, place_weight, run
from tests.inference.kernels.test_matmul import gemv_variants, make_weight
from tests.inference.kernels.test_simple import NUMPY, TOLERANCE

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, COLUMNS = 6, 2, 256
KEYS, VALUES = Binding("kv", "7.k"), Binding("kv", "7.v")
LAYOUT = CacheLayout("contiguous", (KEYS, VALUES))


def make_ops(head_dim: int, rope: RopeConfig, rows: int = 1, dtype: DType = "f32") -> tuple[Op, Op]:
    """The matmul of q, k and v with norm and bias, and its append."""
    q_size, kv_size = HEADS * head_dim, KV_HEADS * head_dim
    outputs = q_size + 2 * kv_size
    qkv = TensorRef("qkv", rows, outputs, dtype)
    refs = (WeightRef(("w",), outputs, COLUMNS), WeightRef(("bias",), outputs, 1), WeightRef(("norm",), 1, COLUMNS))
    attributes = Matmul(bias=True, norm_eps=1e-5)
    maker = Op("matmul", "attention.qkv", 7, (TensorRef("x", rows, COLUMNS, "f32"),), qkv, attributes, refs)
    views = qkv.view("q", 0, q_size), qkv.view("k", q_size, kv_size), qkv.view("v", q_size + kv_size, kv_size)
    output = TensorRef("y", rows, q_size, dtype)
    return maker, Op("kv_append", "append", 7, views, output, KvAppend(HEADS, KV_HEADS, head_dim, rope))


def fold(maker: Op, append: Op, context: KernelContext) -> tuple[list[Decision], list[tuple[Dispatch, ...]]]:
    decisions = [matmul.choose(maker, context), simple.choose(append, context)]
    dispatches = [matmul.dispatches(maker, decisions[0], context), simple.dispatches(append, decisions[1], context)]
    return append_in_matmul.fold_appends((maker, append), decisions, dispatches, context)


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("f32", "f32"), ("f32", "f16"), ("f16", "f16")])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (24, 24), (80, 32)])
def test_rotated_and_stored(
    gpu: Gpu, dtype: DType, kv_dtype: DType, interleaved: bool, head_dim: int, rotary_dim: int
) -> None:
    if "f16" in (dtype, kv_dtype) and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    rng = np.random.default_rng(5)
    position, capacity = 5, 12
    rope = RopeConfig(10_000.0, rotary_dim, interleaved)
    maker, append = make_ops(head_dim, rope, dtype=dtype)
    outputs, q_size, kv_size = maker.output.columns, HEADS * head_dim, KV_HEADS * head_dim
    weight = make_weight("Q4_1", outputs, COLUMNS, rng)
    norm = rng.uniform(0.5, 1.5, (1, COLUMNS)).astype(np.float32)
    bias = rng.standard_normal((outputs, 1)).astype(np.float32)
    placed = {
        ref: place_weight(ref.name, planar)
        for ref, planar in zip(maker.weights, (weight, from_dense(bias), from_dense(norm)), strict=True)
    }
    x = rng.standard_normal((1, COLUMNS)).astype(np.float32)
    cache = rng.standard_normal((capacity, kv_size)).astype(NUMPY[kv_dtype])
    table = rope_table(rope, 0, capacity)
    inputs = {
        tensor(maker.inputs[0]): x, Binding("rope", "7"): table, STATE: np.array([position, 1], np.uint32),
        KEYS: cache, VALUES: cache,
    }  # fmt: skip
    for _, arrays in placed.values():
        inputs |= arrays
    form = ((capacity, kv_size), NUMPY[kv_dtype])
    weights = {ref: weight for ref, (weight, _) in placed.items()}
    for variant in gemv_variants(gpu, weight):
        caps = gpu.caps if variant == "gemv_subgroup" else replace(gpu.caps, subgroup_size=0, subgroup_reason="none")
        preferences = (KernelPreference(variant, True),)
        context = KernelContext(caps, 1, kv_dtype, 1, weights, {7: LAYOUT}, preferences)
        decisions, dispatches = fold(maker, append, context)
        assert [decision.variant for decision in decisions] == [variant, "append_in_matmul"]
        assert [len(each) for each in dispatches] == [1, 0]
        wanted = {tensor(append.output): ((1, q_size), NUMPY[dtype]), KEYS: form, VALUES: form}
        found = run(gpu, dispatches[0], inputs, wanted)

        made = cpu.rmsnorm(x, norm[0], 1e-5) @ weight.dequantize().T + bias[:, 0]
        turn = table[position : position + 1]
        q, k, v = np.split(made, (q_size, q_size + kv_size), axis=1)
        expected = {
            tensor(append.output): (0, cpu.rotate(q, turn, head_dim, interleaved)),
            KEYS: (position, cpu.rotate(k, turn, head_dim, interleaved)),
            VALUES: (position, v),
        }
        for binding, (row, values) in expected.items():
            error = np.linalg.norm(found[binding][row] - values) / np.linalg.norm(values)
            exact = 6e-5 if variant == "gemv_packed" else 0
            assert error < max(exact, 2 * TOLERANCE[dtype if row == 0 else kv_dtype])
        others = np.arange(capacity) != position
        np.testing.assert_array_equal(found[KEYS][others], cache[others])
        np.testing.assert_array_equal(found[VALUES][others], cache[others])


def test_where_it_cannot_be_the_append_keeps_its_dispatch_and_says_why(gpu: Gpu) -> None:
    rope = RopeConfig(10_000.0, 64, False)
    maker, append = make_ops(64, rope)
    assert isinstance(append.attributes, KvAppend)
    norms = (WeightRef(("q_norm",), 1, 64), WeightRef(("k_norm",), 1, 64))
    normed = replace(append, attributes=replace(append.attributes, qk_norm_eps=1e-6), weights=norms)
    apart = replace(append, inputs=(*append.inputs[:2], TensorRef("v", 1, 128, "f32")))
    tiered = CacheLayout("tiered", (KEYS,), {"RING_CAPACITY": 8}, before_append=(Dispatch("", {}, (), (1, 1, 1)),))
    zeros = np.zeros((1, 64), np.float32)
    refs = {ref: place_weight(ref.name, from_dense(zeros))[0] for ref in norms}
    for ref in maker.weights:
        refs[ref] = place_weight(ref.name, from_dense(np.zeros((ref.rows, ref.columns), np.float32)))[0]
    few = replace(gpu.caps, max_storage_buffers=8)
    cases = [
        (normed, LAYOUT, gpu.caps, "the norms of q and k need whole heads"),
        (apart, LAYOUT, gpu.caps, "q, k and v do not come from one matmul"),
        (append, tiered, gpu.caps, "a tiered cache is appended to in its own way"),
        (append, LAYOUT, few, "it needs 9 buffers, the device binds 8"),
    ]
    for op, layout, caps, why in cases:
        decisions, dispatches = fold(maker, op, KernelContext(caps, 1, "f32", 1, refs, {7: layout}))
        assert decisions[1].variant == f"append_{layout.name}"
        assert decisions[1].rejected == (("append_in_matmul", why),)
        assert dispatches[1]
    many = fold(*make_ops(64, rope, rows=8), KernelContext(gpu.caps, 8, "f32", 1, refs, {7: LAYOUT}))
    assert many[0][1].variant == "append_contiguous" and len(many[1][1]) == 1
