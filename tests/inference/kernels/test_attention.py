"""Attention kernels against NumPy: every variant, storage type and sharing of heads, many shapes and masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.kernels import attention
from inference.kernels.base import Decision, KernelPreference
from inference.kernels.dispatch import STATE, Binding, KernelContext, tensor
from inference.plan.ops import Attention, DType, Op, TensorRef
from tests.inference.kernels.harness import POISON, Gpu, run

DECODE = ["decode_split", "decode_online", "decode_streaming"]
PREFILL = ["prefill_tiled", "prefill_small", "prefill_streaming"]
STORAGE: list[tuple[DType, DType]] = [("f32", "f32"), ("f32", "f16"), ("f16", "f16")]  # q and output, cache
HEADS = {"MHA": (2, 2), "GQA": (6, 2), "MQA": (4, 1)}
NUMPY = {"f32": np.float32, "f16": np.float16}


def shape(heads: str = "GQA", head_dim: int = 64, window: int | None = None, softcap: float | None = None) -> Attention:
    num_heads, num_kv_heads = HEADS[heads]
    return Attention(num_heads, num_kv_heads, head_dim, head_dim**-0.5, window, softcap)


def make_op(a: Attention, rows: int, dtype: DType = "f32", qkv: bool = False) -> Op:
    """An attention op whose q is a tensor of its own, or with `qkv` the second head on of a wider one."""
    columns = a.num_heads * a.head_dim
    q = TensorRef("q", rows, columns, dtype)
    if qkv:
        q = TensorRef("qkv", rows, columns + 2 * a.head_dim, dtype).view("q", a.head_dim, columns)
    return Op("attention", "test", 3, (q,), TensorRef("out", rows, columns, dtype), a)


def make_context(gpu: Gpu, rows: int, kv_dtype: DType, bucket: int, variant: str | None = None) -> KernelContext:
    preferences = () if variant is None else (KernelPreference(variant, True),)
    return KernelContext(gpu.caps, rows, kv_dtype, bucket, {}, preferences)


def check(
    gpu: Gpu,
    variant: str,
    a: Attention,
    position: int,
    rows: int = 1,
    max_rows: int | None = None,
    storage: tuple[DType, DType] = ("f32", "f32"),
    qkv: bool = False,
    seed: int = 0,
) -> None:
    """Run `variant` on rows at `position` onwards of a cache that is NaN past the last row, and compare."""
    if "f16" in storage and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    if variant in ("decode_split", "decode_online") and not gpu.caps.subgroup_size:
        pytest.skip("the adapter has no subgroups")
    # decode_split is not for software adapters, nor for few keys.
    gpu = replace(gpu, caps=replace(gpu.caps, software=False))
    rng = np.random.default_rng(seed)
    dtype, kv_dtype = storage
    max_rows = max_rows or rows
    op = make_op(a, max_rows, dtype, qkv)
    q_ref, q_storage = op.inputs[0], op.inputs[0].storage
    num_keys, capacity = position + rows, position + max_rows + 37
    q = rng.standard_normal((max_rows, q_storage.columns)).astype(NUMPY[dtype])
    # Scores of some size, so that the softmax is not flat.
    k = (2.0 * rng.standard_normal((capacity, a.num_kv_heads, a.head_dim))).astype(NUMPY[kv_dtype])
    v = rng.standard_normal(k.shape).astype(NUMPY[kv_dtype])
    k[num_keys:] = v[num_keys:] = np.nan
    if a.window is not None:
        k[: max(0, position - a.window + 1)] = v[: max(0, position - a.window + 1)] = np.nan

    context = make_context(gpu, max_rows, kv_dtype, max(num_keys, attention.FEW_KEYS + 1), variant)
    decision = attention.choose(op, context)
    assert decision.variant == variant
    inputs = {
        tensor(q_ref): q, STATE: np.array([position, rows], np.uint32), Binding("kv", "3.k"): k, Binding("kv", "3.v"): v
    }  # fmt: skip
    outputs = {tensor(op.output): ((max_rows, op.output.columns), NUMPY[dtype])}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    found = run(gpu, attention.dispatches(op, decision, context), inputs, outputs)[tensor(op.output)]

    first = q_ref.first_column
    queries = q[:rows, first : first + q_ref.columns].astype(np.float32)
    # What the window hides is NaN for the kernel, and unseen by the reference.
    keys, values = (np.nan_to_num(x[:num_keys].astype(np.float32)).transpose(1, 0, 2) for x in (k, v))
    expected = cpu.attention(queries, keys, values, position, a)
    error = np.linalg.norm(found[:rows].astype(np.float32) - expected) / np.linalg.norm(expected)
    assert error < (1e-5 if storage == ("f32", "f32") else 2e-3), f"relative error {error}"
    assert (found[rows:].view(np.uint32) == POISON).all(), "rows past the step's were written"


@pytest.mark.gpu
@pytest.mark.parametrize("storage", STORAGE, ids="-".join)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("variant", DECODE)
def test_decode_storage_and_heads(gpu: Gpu, variant: str, heads: str, storage: tuple[DType, DType]) -> None:
    check(gpu, variant, shape(heads, 32), position=70, storage=storage)


@pytest.mark.gpu
@pytest.mark.parametrize("storage", STORAGE, ids="-".join)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("variant", PREFILL)
def test_prefill_storage_and_heads(gpu: Gpu, variant: str, heads: str, storage: tuple[DType, DType]) -> None:
    check(gpu, variant, shape(heads, 32), position=13, rows=19, max_rows=32, storage=storage)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_head_dims(gpu: Gpu, variant: str, head_dim: int) -> None:
    rows = 1 if variant in DECODE else 11
    check(gpu, variant, shape("MQA", head_dim), position=29, rows=rows, seed=head_dim)


@pytest.mark.gpu
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 1, 16, 50])
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_masks(gpu: Gpu, variant: str, window: int | None, softcap: float | None) -> None:
    rows = 1 if variant in DECODE else 21
    if variant == "decode_split" and window is not None:
        window += attention.FEW_KEYS
    position = 343 if variant == "decode_split" else 43
    check(gpu, variant, shape("GQA", 16, window, softcap), position, rows, seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_the_first_tokens(gpu: Gpu, variant: str) -> None:
    for rows in (1,) if variant in DECODE else (2, 37):
        check(gpu, variant, shape(head_dim=32), position=0, rows=rows, max_rows=1 if variant in DECODE else 64)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_a_step_of_no_rows_writes_nothing(gpu: Gpu, variant: str) -> None:
    if variant in ("decode_split", "decode_online") and not gpu.caps.subgroup_size:
        pytest.skip("the adapter has no subgroups")
    a, rows = shape(head_dim=16), 1 if variant in DECODE else 8
    gpu = replace(gpu, caps=replace(gpu.caps, software=False))
    op, context = make_op(a, rows), make_context(gpu, rows, "f32", 300, variant)
    cache = np.ones((8, a.num_kv_heads, a.head_dim), np.float32)
    outputs = {tensor(op.output): ((rows, op.output.columns), np.float32)}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    inputs = {
        tensor(op.inputs[0]): np.ones((rows, op.output.columns), np.float32), STATE: np.array([4, 0], np.uint32),
        Binding("kv", "3.k"): cache, Binding("kv", "3.v"): cache,
    }  # fmt: skip
    found = run(gpu, attention.dispatches(op, attention.choose(op, context), context), inputs, outputs)
    assert (found[tensor(op.output)].view(np.uint32) == POISON).all()


@pytest.mark.gpu
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_queries_in_a_wider_tensor(gpu: Gpu, variant: str) -> None:
    check(gpu, variant, shape(head_dim=32), position=9, rows=1 if variant in DECODE else 5, qkv=True)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_long_caches(gpu: Gpu, variant: str) -> None:
    check(gpu, variant, shape("MQA", 16), position=701, rows=1 if variant in DECODE else 9)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 1000])
def test_split_over_thousands_of_keys(gpu: Gpu, window: int | None) -> None:
    check(gpu, "decode_split", shape("GQA", 64, window), position=3001)


@pytest.mark.gpu
def test_scores_far_from_zero(gpu: Gpu) -> None:
    """exp of the scores themselves would overflow."""
    for variant in DECODE + PREFILL:
        a = replace(shape(head_dim=32), scale=20.0, softcap=None)
        check(gpu, variant, a, position=40, rows=1 if variant in DECODE else 5)
        check(gpu, variant, replace(a, softcap=2.0), position=40, rows=1 if variant in DECODE else 5)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_tiles_fit_what_memory_there_is(gpu: Gpu, head_dim: int) -> None:
    for storage in (8192, 16384, 24576):
        small = replace(gpu, caps=replace(gpu.caps, max_workgroup_storage=storage))
        if attention.TILES[-1].storage(head_dim) <= storage:
            check(small, "prefill_tiled", shape("GQA", head_dim), position=5, rows=33)


def choose(gpu: Gpu, rows: int, a: Attention, bucket: int = 1024, dtype: DType = "f32", **caps: object) -> Decision:
    changed = replace(gpu, caps=replace(gpu.caps, **caps))  # type: ignore[arg-type]
    return attention.choose(make_op(a, rows, dtype), make_context(changed, rows, dtype, bucket))


CAPABLE = {"subgroup_size": 32, "f16": True, "max_workgroup_storage": 49152, "max_invocations": 1024, "software": False}


@pytest.mark.gpu
def test_the_first_choices(gpu: Gpu) -> None:
    assert choose(gpu, 1, shape(), **CAPABLE) == Decision(
        "decode_split", "one row, many keys: workgroups share them, then a merge"
    )
    decision = choose(gpu, 64, shape(), **CAPABLE)
    assert (decision.variant, decision.rejected) == ("prefill_tiled", ())
