"""Embedding, norm, KV append, elementwise and last-row kernels against NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.errors import KernelUnavailable
from inference.formats.planar import PlanarTensor, from_dense
from inference.kernels import simple
from inference.kernels.dispatch import STATE, Binding, CacheLayout, DeviceWeight, KernelContext, tensor
from inference.models.config import RopeConfig
from inference.plan.ops import (
    ActivationGate,
    Add,
    DType,
    Embed,
    KvAppend,
    LastRow,
    Op,
    RmsNorm,
    Rope,
    Softcap,
    TensorRef,
    WeightRef,
)
from inference.rope import rope_table
from tests.inference.kernels.harness import Gpu, place_weight, run
from tests.inference.kernels.test_matmul import REFERENCE_CASES, make_weight, reference_weight

pytestmark = pytest.mark.gpu

NUMPY = {"f32": np.float32, "f16": np.float16}
TOLERANCE = {"f32": 1e-6, "f16": 1e-3}
DTYPES: list[DType] = ["f32", "f16"]


def run_op(
    gpu: Gpu,
    op: Op,
    inputs: Mapping[Binding, np.ndarray],
    outputs: Mapping[Binding, tuple[tuple[int, ...], Any]],
    weights: Mapping[WeightRef, tuple[DeviceWeight, Mapping[Binding, np.ndarray]]],
    kv_dtype: DType = "f32",
) -> dict[Binding, np.ndarray]:
    if any("f16" in (t.dtype, kv_dtype) for t in (*op.inputs, op.output)) and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    cache = CacheLayout("contiguous", (Binding("kv", f"{op.layer}.k"), Binding("kv", f"{op.layer}.v")))
    placed = {ref: weight for ref, (weight, _) in weights.items()}
    context = KernelContext(
        gpu.caps, op.output.rows, kv_dtype, 1, placed, {} if op.layer is None else {op.layer: cache}
    )
    dispatches = simple.dispatches(op, simple.choose(op, context), context)
    arrays = dict(inputs)
    for _, planes in weights.values():
        arrays |= planes
    used = {binding for dispatch in dispatches for binding in dispatch.bindings}
    return run(gpu, dispatches, {b: a for b, a in arrays.items() if b in used}, outputs)


def close(found: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < TOLERANCE[dtype], f"relative error {error}"


def weight_of(name: str, planar: PlanarTensor, split: int = 1) -> tuple[WeightRef, tuple[DeviceWeight, dict]]:
    return WeightRef((name,), planar.rows, planar.columns), place_weight(name, planar, split)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [1, 4])
def test_embed(gpu: Gpu, dtype: DType, split: int) -> None:
    rng = np.random.default_rng(1)
    table = make_weight("Q8_0", 128, 96, rng)
    ref, placed = weight_of("table", table, split)
    y = TensorRef("y", 8, 96, dtype)
    tokens = rng.integers(0, 128, 8).astype(np.uint32)
    op = Op("embed", "embedding", None, (), y, Embed(3.5), (ref,))
    inputs = {Binding("tokens"): tokens, STATE: np.array([40, 5], np.uint32)}
    found = run_op(gpu, op, inputs, {tensor(y): ((8, 96), NUMPY[dtype])}, {ref: placed})[tensor(y)]
    close(found[:5], table.dequantize()[tokens[:5]] * 3.5, dtype)


@pytest.mark.parametrize("case", REFERENCE_CASES)
def test_embed_of_every_format(gpu: Gpu, case: str) -> None:
    """Every weight of the reference blocks comes out as ggml's own code gives it."""
    table, expected = reference_weight(case)
    ref, placed = weight_of("table", table)
    y = TensorRef("y", table.rows, table.columns, "f32")
    op = Op("embed", "embedding", None, (), y, Embed(1.0), (ref,))
    tokens = np.arange(table.rows, dtype=np.uint32)
    inputs = {Binding("tokens"): tokens, STATE: np.array([0, table.rows], np.uint32)}
    found = run_op(gpu, op, inputs, {tensor(y): (expected.shape, np.float32)}, {ref: placed})[tensor(y)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "group", "residual"), [(1, 576, False), (1, 50, True), (3, 24, False)])
def test_rmsnorm(gpu: Gpu, dtype: DType, groups: int, group: int, residual: bool) -> None:
    rng = np.random.default_rng(2)
    columns = groups * group
    wide = TensorRef("wide", 5, columns + 16, dtype)
    x = wide.view("x", 8, columns)
    extra, y = TensorRef("extra", 5, columns, dtype), TensorRef("y", 5, columns, dtype)
    ref, placed = weight_of("w", from_dense(rng.uniform(0.5, 1.5, (1, group)).astype(np.float32)))
    op = Op("rmsnorm", "n", 0, (x, extra) if residual else (x,), y, RmsNorm(1e-5, group, residual), (ref,))
    values = rng.standard_normal((5, columns + 16)).astype(NUMPY[dtype])
    added = rng.standard_normal((5, columns)).astype(NUMPY[dtype])
    inputs = {tensor(x): values, tensor(extra): added, STATE: np.array([0, 4], np.uint32)}
    found = run_op(gpu, op, inputs, {tensor(y): ((5, columns), NUMPY[dtype])}, {ref: placed})[tensor(y)]
    weight = placed[1][placed[0].bindings(0)[0]].view(np.float32)[0]
    expected = cpu.rmsnorm(values[:4, 8 : 8 + columns].astype(np.float32), weight, 1e-5)
    close(found[:4], expected + added[:4] if residual else expected, dtype)


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("f32", "f32"), ("f32", "f16"), ("f16", "f16")])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (24, 24), (80, 32), (256, 256)])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_kv_append(
    gpu: Gpu, dtype: DType, kv_dtype: DType, interleaved: bool, head_dim: int, rotary_dim: int, qk_norm: bool
) -> None:
    rng = np.random.default_rng(3)
    heads, kv_heads, rows, max_rows, position, capacity = 6, 2, 3, 4, 5, 12
    q_size, kv_size = heads * head_dim, kv_heads * head_dim
    qkv = TensorRef("qkv", max_rows, q_size + 2 * kv_size, dtype)
    q, k = qkv.view("q", 0, q_size), qkv.view("k", q_size, kv_size)
    v = qkv.view("v", q_size + kv_size, kv_size)
    y = TensorRef("y", max_rows, q_size, dtype)
    q_norm = weight_of("q_norm", from_dense(rng.uniform(0.5, 1.5, (1, head_dim)).astype(np.float32)))
    k_norm = weight_of("k_norm", from_dense(rng.uniform(0.5, 1.5, (1, head_dim)).astype(np.float32)))
    rope = RopeConfig(10_000.0, rotary_dim, interleaved)
    attributes = KvAppend(heads, kv_heads, head_dim, rope, 1e-6 if qk_norm else None)
    op = Op("kv_append", "append", 7, (q, k, v), y, attributes, (q_norm[0], k_norm[0]) if qk_norm else ())
    values = rng.standard_normal((max_rows, qkv.columns)).astype(NUMPY[dtype])
    keys, held = Binding("kv", "7.k"), Binding("kv", "7.v")
    cache = rng.standard_normal((capacity, kv_size)).astype(NUMPY[kv_dtype])
    table = rope_table(rope, 0, capacity)
    inputs = {
        tensor(qkv): values, Binding("rope", "7"): table, STATE: np.array([position, rows], np.uint32),
        keys: cache, held: cache,
    }  # fmt: skip
    cache_form = ((capacity, kv_size), NUMPY[kv_dtype])
    outputs = {tensor(y): ((max_rows, q_size), NUMPY[dtype]), keys: cache_form, held: cache_form}
    found = run_op(gpu, op, inputs, outputs, dict([q_norm, k_norm]), kv_dtype)

    wide = values[:rows].astype(np.float32)
    new_q, new_k = wide[:, :q_size], wide[:, q_size : q_size + kv_size]
    if qk_norm:
        weights = [placed[1][placed[0].bindings(0)[0]].view(np.float32)[0] for _, placed in (q_norm, k_norm)]
        new_q, new_k = cpu.rmsnorm(new_q, weights[0], 1e-6), cpu.rmsnorm(new_k, weights[1], 1e-6)
    turn = table[position : position + rows]
    close(found[tensor(y)][:rows], cpu.rotate(new_q, turn, head_dim, interleaved), dtype)
    written = slice(position, position + rows)
    close(found[keys][written], cpu.rotate(new_k, turn, head_dim, interleaved), kv_dtype)
    close(found[held][written], wide[:, q_size + kv_size :], kv_dtype)
    untouched = np.r_[0:position, position + rows : capacity]
    np.testing.assert_array_equal(found[keys][untouched], cache[untouched])
    np.testing.assert_array_equal(found[held][untouched], cache[untouched])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attributes", [Add(), Add(0.25), ActivationGate("silu"), ActivationGate("gelu_tanh")])
def test_binary(gpu: Gpu, dtype: DType, attributes: Add | ActivationGate) -> None:
    rng = np.random.default_rng(4)
    both = TensorRef("both", 3, 150, dtype)
    a, b, y = both.view("a", 0, 75), both.view("b", 75, 75), TensorRef("y", 3, 75, "f32")
    values = (rng.standard_normal((3, 150)) * 4).astype(NUMPY[dtype])
    op = Op("add" if isinstance(attributes, Add) else "activation_gate", "b", 0, (a, b), y, attributes)
    inputs = {tensor(both): values, STATE: np.array([0, 2], np.uint32)}
    found = run_op(gpu, op, inputs, {tensor(y): ((3, 75), np.float32)}, {})[tensor(y)][:2]
    left, right = values[:2, :75].astype(np.float32), values[:2, 75:].astype(np.float32)
    if isinstance(attributes, Add):
        expected = attributes.scale * left + right
    else:
        expected = cpu.activate(left, attributes.activation) * right
    close(found, expected, "f32")


def test_softcap_survives_large_values(gpu: Gpu) -> None:
    x, y = TensorRef("x", 2, 33, "f32"), TensorRef("y", 2, 33, "f32")
    values = np.linspace(-1e5, 1e5, 66, dtype=np.float32).reshape(2, 33)
    op = Op("softcap", "cap", None, (x,), y, Softcap(30.0))
    found = run_op(gpu, op, {tensor(x): values}, {tensor(y): ((2, 33), np.float32)}, {})[tensor(y)]
    np.testing.assert_allclose(found, cpu.softcap(values, 30.0), atol=1e-4)


def test_last_row_is_the_last_that_the_step_holds(gpu: Gpu) -> None:
    x, y = TensorRef("x", 8, 70, "f32"), TensorRef("y", 1, 70, "f32")
    values = np.random.default_rng(5).standard_normal((8, 70)).astype(np.float32)
    op = Op("last_row", "last_row", None, (x,), y, LastRow())
    inputs = {tensor(x): values, STATE: np.array([3, 6], np.uint32)}
    found = run_op(gpu, op, inputs, {tensor(y): ((1, 70), np.float32)}, {})[tensor(y)]
    np.testing.assert_array_equal(found[0], values[5])


def test_a_form_without_a_kernel_is_refused_by_name(gpu: Gpu) -> None:
    x = TensorRef("x", 1, 64, "f32")
    op = Op("rope", "attention.q_rope", 0, (x,), x, Rope(RopeConfig(1e4, 64, True), 64))
    with pytest.raises(KernelUnavailable, match=r"attention\.q_rope"):
        simple.choose(op, KernelContext(gpu.caps, 1, "f32", 1, {}))
