"""Attention kernels against NumPy: every variant, storage type and sharing of heads, many shapes and masks.

The cache is contiguous; test_layouts.py has the other layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.errors import KernelUnavailable
from inference.formats.planar import from_dense
from inference.gpu.device import DeviceCaps
from inference.kernels import attention
from inference.kernels.base import Decision, KernelPreference
from inference.kernels.dispatch import STATE, Binding, CacheLayout, Constant, KernelContext, tensor
from inference.plan.ops import Attention, DType, Op, TensorRef, WeightRef
from tests.inference.kernels.harness import POISON, Gpu, place_weight, run

DECODE = ["decode_split", "decode_online", "decode_streaming"]
PREFILL = ["prefill_tiled", "prefill_small", "prefill_streaming"]
STORAGE: list[tuple[DType, DType]] = [("f32", "f32"), ("f32", "f16"), ("f16", "f16")]  # q and output, cache
HEADS = {"MHA": (2, 2), "GQA": (6, 2), "MQA": (4, 1)}
NUMPY = {"f32": np.float32, "f16": np.float16}
CONTIGUOUS = CacheLayout("contiguous", (Binding("kv", "3.k"), Binding("kv", "3.v")))


SINKS = WeightRef(("sinks",), 6, 1)


def shape(
    heads: str = "GQA",
    head_dim: int = 64,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Attention:
    num_heads, num_kv_heads = HEADS[heads]
    return Attention(num_heads, num_kv_heads, head_dim, head_dim**-0.5, window, softcap, sinks)


def make_op(a: Attention, rows: int, dtype: DType = "f32", qkv: bool = False) -> Op:
    """An attention op whose q is a tensor of its own, or with `qkv` the second head on of a wider one."""
    columns = a.num_heads * a.head_dim
    q = TensorRef("q", rows, columns, dtype)
    if qkv:
        q = TensorRef("qkv", rows, columns + 2 * a.head_dim, dtype).view("q", a.head_dim, columns)
    return Op("attention", "test", 3, (q,), TensorRef("out", rows, columns, dtype), a, (SINKS,) if a.sinks else ())


def make_context(
    caps: DeviceCaps, rows: int, kv_dtype: DType, bucket: int, variant: str | None = None
) -> KernelContext:
    preferences = () if variant is None else (KernelPreference(variant, True),)
    return KernelContext(caps, rows, kv_dtype, bucket, {}, {3: CONTIGUOUS}, preferences)


def check(
    gpu: Gpu,
    variant: str,
    a: Attention,
    position: int,
    rows: int = 1,
    max_rows: int | None = None,
    storage: tuple[DType, DType] = ("f32", "f32"),
    qkv: bool = False,
    key_size: float = 2.0,
    seed: int = 0,
) -> None:
    """Run `variant` on rows at `position` onwards of a cache that is NaN where no row may look, and compare.

    `key_size` is the keys' standard deviation: with 2 the softmax is neither flat nor a single key.
    """
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
    k = (key_size * rng.standard_normal((capacity, a.num_kv_heads, a.head_dim))).astype(NUMPY[kv_dtype])
    v = rng.standard_normal(k.shape).astype(NUMPY[kv_dtype])
    k[num_keys:] = v[num_keys:] = np.nan
    if a.window is not None:
        k[: max(0, position - a.window + 1)] = v[: max(0, position - a.window + 1)] = np.nan

    sinks = np.linspace(-3, 12, 6, dtype=np.float32)  # from nothing to most of the weight
    placed, sink_arrays = place_weight("sinks", from_dense(sinks[:, None]))
    context = make_context(gpu.caps, max_rows, kv_dtype, max(num_keys, 4096), variant)
    context = replace(context, weights={SINKS: placed})
    decision = attention.choose(op, context)
    assert decision.variant == variant
    inputs = {
        tensor(q_ref): q, STATE: np.array([position, rows], np.uint32), Binding("kv", "3.k"): k, Binding("kv", "3.v"): v
    }  # fmt: skip
    inputs |= sink_arrays if a.sinks else {}
    outputs = {tensor(op.output): ((max_rows, op.output.columns), NUMPY[dtype])}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    found = run(gpu, attention.dispatches(op, decision, context), inputs, outputs)[tensor(op.output)]

    first = q_ref.first_column
    queries = q[:rows, first : first + q_ref.columns].astype(np.float32)
    # What the window hides is NaN for the kernel, and unseen by the reference.
    keys, values = (np.nan_to_num(x[:num_keys].astype(np.float32)).transpose(1, 0, 2) for x in (k, v))
    expected = cpu.attention(queries, keys, values, position, a, sinks=sinks if a.sinks else None)
    error = np.linalg.norm(found[:rows].astype(np.float32) - expected) / np.linalg.norm(expected)
    assert error < (1e-5 if storage == ("f32", "f32") else 2e-3), f"relative error {error}"
    assert (found[rows:].view(np.uint32) == POISON).all(), "rows past the step's were written"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "storage"), [("GQA", storage) for storage in STORAGE] + [("MHA", STORAGE[0]), ("MQA", STORAGE[2])]
)
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_storage_and_heads(gpu: Gpu, variant: str, heads: str, storage: tuple[DType, DType]) -> None:
    if variant in DECODE:
        check(gpu, variant, shape(heads, 32), position=70, storage=storage)
    else:
        check(gpu, variant, shape(heads, 32), position=13, rows=19, max_rows=32, storage=storage)


@pytest.mark.gpu
# 16 is in test_long_caches, and 96 as 80 is.
@pytest.mark.parametrize("head_dim", [24, 64, 80, 128, 256, pytest.param(96, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_head_dims(gpu: Gpu, variant: str, head_dim: int) -> None:
    rows = 1 if variant in DECODE else 11
    check(gpu, variant, shape("MQA", head_dim), position=29, rows=rows, seed=head_dim)


@pytest.mark.gpu
@pytest.mark.parametrize(("window", "softcap"), [(1, None), (16, None), (50, 5.0), (None, 5.0)])
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_masks(gpu: Gpu, variant: str, window: int | None, softcap: float | None) -> None:
    if variant == "decode_split":  # only a wide window is split
        window = window and window + 256
        check(gpu, variant, shape("GQA", 64, window, softcap), position=343, seed=1)
    else:
        rows = 1 if variant in DECODE else 21
        check(gpu, variant, shape("GQA", 16, window, softcap), position=43, rows=rows, seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_sinks(gpu: Gpu, variant: str) -> None:
    if variant == "decode_split":
        check(gpu, variant, shape(window=300, sinks=True), position=343)
    else:
        check(gpu, variant, shape(head_dim=16, sinks=True), position=43, rows=1 if variant in DECODE else 21)


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
    op, context = make_op(a, rows), make_context(gpu.caps, rows, "f32", 4096, variant)
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
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_scores_far_from_zero(gpu: Gpu, variant: str) -> None:
    """exp of the scores themselves would overflow, and so would a plain tanh."""
    for a in (shape(head_dim=32), shape("GQA", 16, None, 5.0)):
        check(gpu, variant, a, position=43, rows=1 if variant in DECODE else 21, key_size=500.0)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_less_workgroup_memory_takes_smaller_workgroups(gpu: Gpu, head_dim: int) -> None:
    for storage in (2048, 9984, 16384):
        small = replace(gpu, caps=replace(gpu.caps, max_workgroup_storage=storage))
        check(small, "decode_online", shape("GQA", head_dim), position=50)
        if attention.TILES[-1].storage(head_dim) <= storage:
            check(small, "prefill_tiled", shape("GQA", head_dim), position=5, rows=33)


@dataclass(frozen=True)
class _Case:
    tile: attention.Tile
    shape: Attention
    position: int
    rows: int
    storage: tuple[DType, DType] = STORAGE[0]


TILE_CASES = {
    "two queries, heads of 24": _Case(attention.Tile(16, 4, 2, 2, True), shape(head_dim=24), 29, 13),
    "two queries, a window": _Case(attention.Tile(8, 8, 4, 2, False), shape(head_dim=16, window=20), 43, 21),
    "two queries, heads of 80, f16": _Case(attention.Tile(16, 8, 2, 2, False), shape("MQA", 80), 29, 11, STORAGE[2]),
    "four queries, heads of 24, fewer queries": _Case(attention.Tile(32, 8, 4, 4, True), shape("MQA", 24), 5, 3),
    "four queries, heads of 96": _Case(attention.Tile(32, 16, 2, 4, True), shape("MHA", 96), 29, 37),
    "four queries, sinks and a window": _Case(
        attention.Tile(16, 16, 1, 4, False), shape(head_dim=16, window=30, sinks=True), 43, 21
    ),
    "four queries, a softcap": _Case(attention.Tile(16, 4, 2, 4, True), shape(head_dim=16, softcap=5.0), 43, 21),
    "four queries in one group": _Case(attention.Tile(4, 8, 8, 4, True), shape(head_dim=32), 0, 7),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", TILE_CASES.values(), ids=TILE_CASES)
def test_tiles(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, case: _Case) -> None:
    monkeypatch.setattr(attention, "TILES", (case.tile,))
    check(gpu, "prefill_tiled", case.shape, case.position, case.rows, case.rows + 5, case.storage)


CAPS = DeviceCaps(
    name="test", backend="Vulkan", software=False, f16=True, timestamps=True, subgroup_size=32, subgroup_reason="",
    max_workgroup_storage=49152, max_invocations=1024, max_workgroups=65535, max_binding=2**31 - 4,
    max_buffer=2**31, max_storage_buffers=8,
)  # fmt: skip


def choose(rows: int, a: Attention, bucket: int = 1024, dtype: DType = "f32", caps: DeviceCaps = CAPS) -> Decision:
    return attention.choose(make_op(a, rows, dtype), make_context(caps, rows, dtype, bucket))


def test_the_first_choices() -> None:
    for rows, variant in ((1, "decode_split"), (2, "prefill_tiled"), (512, "prefill_tiled")):
        decision = choose(rows, shape())
        assert (decision.variant, decision.rejected) == (variant, ())


def test_few_keys_are_not_split() -> None:
    decision = choose(1, shape(), bucket=512)
    assert decision.variant == "decode_online"
    assert "keys are few" in dict(decision.rejected)["decode_split"]
    # A window hides the others, however many there are.
    assert choose(1, shape(window=32)).variant == "decode_online"
    assert choose(1, shape(window=600)).variant == "decode_split"


def test_split_is_taken_where_asked_for_even_if_unwise() -> None:
    op, context = make_op(shape(), 1, "f32"), make_context(CAPS, 1, "f32", 64)
    forced = replace(context, preferences=(KernelPreference("decode_split", True),))
    assert attention.choose(op, context).variant == "decode_online"
    assert attention.choose(op, forced).variant == "decode_split"


def test_a_software_adapter_does_not_split() -> None:
    decision = choose(1, shape(), caps=replace(CAPS, software=True))
    assert decision.variant == "decode_online"
    assert "software adapter" in dict(decision.rejected)["decode_split"]


def test_without_subgroups_decode_streams() -> None:
    decision = choose(1, shape(), caps=replace(CAPS, subgroup_size=0, subgroup_reason="none here"))
    assert decision.variant == "decode_streaming"
    assert decision.rejected == (("decode_split", "none here"), ("decode_online", "none here"))


def test_workgroup_memory_decides() -> None:
    a = shape(head_dim=256)
    decode = choose(1, a, caps=replace(CAPS, max_workgroup_storage=1000))
    assert decode.variant == "decode_streaming"
    assert all("1000" in why for _, why in decode.rejected)
    small = choose(64, a, caps=replace(CAPS, max_workgroup_storage=8192))
    assert small.variant == "prefill_small"
    assert "the device has 8192" in dict(small.rejected)["prefill_tiled"]
    streaming = choose(64, a, caps=replace(CAPS, max_workgroup_storage=1024))
    assert streaming.variant == "prefill_streaming"
    assert [name for name, _ in streaming.rejected] == ["prefill_tiled", "prefill_small"]


def prefill_tile(rows: int, a: Attention, storage: int) -> tuple[Constant, ...]:
    """Queries of a workgroup and of an invocation."""
    op, context = make_op(a, rows), make_context(replace(CAPS, max_workgroup_storage=storage), rows, "f32", 1024)
    (dispatch,) = attention.dispatches(op, attention.choose(op, context), context)
    queries = dispatch.constants["QUERIES"]
    assert isinstance(queries, int)
    assert dispatch.grid == (a.num_kv_heads, -(-rows * a.num_heads // a.num_kv_heads // queries), 1)
    return queries, dispatch.constants["THREAD_QUERIES"]


def test_tiles_fit_queries_memory_and_registers() -> None:
    for head_dim in (16, 64, 80, 128):
        for storage in (16384, 32768, 49152):
            assert prefill_tile(11, shape(head_dim=head_dim), storage) == (32, 4)  # 33 queries of a KV head
            assert prefill_tile(10, shape(head_dim=head_dim), storage) == (16, 1)
    assert prefill_tile(64, shape(head_dim=256), 49152) == (32, 4)
    assert prefill_tile(64, shape(head_dim=256), 32768) == (16, 1)
    for tile in attention.TILES + attention.SMALL_TILES:
        assert tile.queries % tile.thread_queries == 0
        assert tile.thread_queries in (1, 2, 4)


def test_small_tiles_are_small() -> None:
    for head_dim in range(16, 257, 4):
        assert attention.SMALL_TILES[-1].storage(head_dim) < attention.SMALL_STORAGE


@pytest.mark.parametrize("rows", [1, 64])
def test_what_no_variant_can_do(rows: int) -> None:
    with pytest.raises(KernelUnavailable, match="no f16"):
        choose(rows, shape(), dtype="f16", caps=replace(CAPS, f16=False))
    with pytest.raises(KernelUnavailable, match="18 is not a multiple of 4"):
        choose(rows, shape(head_dim=18))


def test_scratch_holds_a_record_for_each_head_and_share() -> None:
    a = shape(head_dim=64)
    for bucket in (600, 1024, 8192):
        op, context = make_op(a, 1), make_context(CAPS, 1, "f32", bucket)
        split, _ = attention.dispatches(op, attention.choose(op, context), context)
        assert attention.scratch_bytes(op, context) == a.num_heads * split.grid[1] * (a.head_dim + 4) * 4
    for rows, bucket in ((1, 100), (64, 1024)):
        assert attention.scratch_bytes(make_op(a, rows), make_context(CAPS, rows, "f32", bucket)) == 0
