"""The kernels of the tiered layouts against NumPy: what moves between the tiers, and attention that reads both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.kernels import attention
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import STATE, Binding, CacheLayout, KernelContext, tensor
from inference.kv.gpu_store import GpuMemory
from inference.kv.layout import LayerGroup
from inference.kv.page_pool import PAGE_TOKENS
from inference.kv.quantize import RowFormat, unpack_integers
from inference.kv.tiered import COLD_BITS, GpuTiered, Tiers, gpu_cold_pages
from inference.plan.ops import Attention, DType
from tests.conftest import DATA
from tests.inference.kernels.harness import POISON, Gpu, every_other, run
from tests.inference.kernels.test_attention import DECODE, NUMPY, PREFILL, make_op, shape
from tests.inference.opening import open_store

pytestmark = pytest.mark.gpu

LAYERS = (3, 5)
HOT, CHUNK, IN_FLIGHT, CONTEXT = 20, 64, 2, 2048
LAG = HOT + IN_FLIGHT
HOT_ROWS, COLD_ROWS, TIERS = Binding("kv", "3.hot"), Binding("kv", "3.cold"), Binding("kv", "3.tiers")
LAYOUTS = list(COLD_BITS)


def make_layout(layout: str, kv_heads: int, head_dim: int, kv_dtype: DType, layer: int = LAYERS[0]) -> CacheLayout:
    """How kernels find a layer's cache; none of it needs a device."""
    config, _ = open_store(DATA / "tiny" / "llama" / "gguf" / "model-f16.gguf")
    config = replace(config, num_kv_heads=kv_heads, head_dim=head_dim)
    group = LayerGroup(layout, LAYERS, None, "", HOT)
    memory = GpuMemory(None, None, kv_dtype, CHUNK, IN_FLIGHT, 2**27)  # type: ignore[arg-type]
    tiers = Tiers.of(group, CHUNK, IN_FLIGHT, CONTEXT)
    return GpuTiered(group, config, CONTEXT, tiers, gpu_cold_pages(group, config, memory), memory).layout(layer)


def capacity(layout: CacheLayout) -> int:
    found = layout.constants["RING_CAPACITY"]
    assert isinstance(found, int)
    return found


def need_f16(gpu: Gpu, dtype: DType) -> None:
    if dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")


@pytest.mark.parametrize(
    ("before", "position", "expected"),
    [
        (0, 0, (0, 0)),
        (0, LAG, (0, 0)),
        (0, LAG + 1, (0, 1)),
        (40, 100, (40, 100 - LAG)),
        (40, 50, (40, 40)),  # truncated, and not yet as far as before
        (90, 50, (50, 50)),  # truncated to where it was cold
    ],
)
def test_the_boundary(gpu: Gpu, before: int, position: int, expected: tuple[int, int]) -> None:
    advance, _ = make_layout("tiered", 1, 16, "f32").before_append
    tiers = np.array([POISON, before, 7, 9], np.uint32)
    inputs = {STATE: np.array([position, 1], np.uint32), TIERS: tiers}
    found = run(gpu, [advance], inputs, {TIERS: ((4,), np.uint32)})[TIERS]
    assert found.tolist() == [*expected, 7, 9]


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_demotion(gpu: Gpu, layout: str, head_dim: int, kv_dtype: DType) -> None:
    """As many tokens as a step may take, to scattered pages; the integers within one step of NumPy's."""
    need_f16(gpu, kv_dtype)
    kv_heads, first, position = 3, 37, 37 + CHUNK + LAG
    end = position - LAG
    placed = make_layout(layout, kv_heads, head_dim, kv_dtype)
    rng = np.random.default_rng(head_dim)
    spread = rng.uniform(0.01, 10, (capacity(placed), kv_heads, 2, 1))
    hot = (rng.standard_normal((*spread.shape[:3], head_dim)) * spread).astype(NUMPY[kv_dtype])
    hot[first % capacity(placed), 0] = 0
    pages = np.array([5, 0, 3, 1, 6], np.uint32)
    form = RowFormat(COLD_BITS[layout], head_dim)
    cold_shape = (8 * PAGE_TOKENS, kv_heads, form.columns)
    cold_dtype = np.uint32 if form.bits else NUMPY[kv_dtype]
    inputs = {
        STATE: np.array([position, 1], np.uint32), HOT_ROWS: hot,
        TIERS: np.concatenate(([0, first], pages)).astype(np.uint32),
    }  # fmt: skip
    outputs = {COLD_ROWS: (cold_shape, cold_dtype), TIERS: ((2 + len(pages),), np.uint32)}
    found = run(gpu, placed.before_append, inputs, outputs)[COLD_ROWS]

    positions = np.arange(first, end)
    slots = pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
    untouched = np.ones(len(found), bool)
    untouched[slots] = False
    assert (np.ascontiguousarray(found[untouched]).view(np.uint32) == POISON).all()
    rows = hot[positions % capacity(placed)].astype(np.float32)
    expected = form.encode(rows[:, :, 0], rows[:, :, 1])
    if not form.bits:
        np.testing.assert_array_equal(found[slots].astype(np.float32), expected)
        return
    scales, expected_scales = (np.ascontiguousarray(x[..., :1]).view(np.uint16) for x in (found[slots], expected))
    assert np.abs(scales.astype(int) - expected_scales.astype(int)).max() <= 1  # f16 as integers: one step apart
    integers, expected_integers = (unpack_integers(x[..., 1:], form.bits).astype(int) for x in (found[slots], expected))
    assert np.abs(integers - expected_integers).max() <= 1
    assert np.mean(integers != expected_integers) < 0.01
    assert not found[slots][0, 0].any()


def test_a_step_that_demotes_nothing_writes_nothing(gpu: Gpu) -> None:
    placed = make_layout("tiered-int8", 1, 16, "f32")
    inputs = {
        STATE: np.array([30, 1], np.uint32), HOT_ROWS: np.ones((capacity(placed), 2, 16), np.float32),
        TIERS: np.array([3, 30 - LAG, 0], np.uint32),
    }  # fmt: skip
    outputs = {COLD_ROWS: ((PAGE_TOKENS, 9), np.uint32), TIERS: ((3,), np.uint32)}
    assert (run(gpu, placed.before_append, inputs, outputs)[COLD_ROWS] == POISON).all()


def check(
    gpu: Gpu,
    variant: str,
    layout: str,
    a: Attention,
    position: int,
    rows: int,
    kv_dtype: DType = "f32",
    cold: int | None = None,
) -> None:
    """Attention over `position` + `rows` tokens, the first `cold` in pages (else as many as a step there has).

    All that no row may look at is NaN or poison.
    """
    need_f16(gpu, kv_dtype)
    if variant in ("decode_split", "decode_online") and not gpu.caps.subgroup_size:
        pytest.skip("the adapter has no subgroups")
    gpu = replace(gpu, caps=replace(gpu.caps, software=False))
    cold = max(0, position - LAG) if cold is None else cold
    end = position + rows
    placed = make_layout(layout, a.num_kv_heads, a.head_dim, kv_dtype)
    form = RowFormat(COLD_BITS[layout], a.head_dim)
    rng = np.random.default_rng(position)
    k = 2 * rng.standard_normal((end, a.num_kv_heads, a.head_dim)).astype(NUMPY[kv_dtype]).astype(np.float32)
    v = rng.standard_normal(k.shape).astype(NUMPY[kv_dtype]).astype(np.float32)
    encoded = form.encode(k[:cold], v[:cold])
    k[:cold], v[:cold] = form.decode(encoded)
    pages = rng.permutation(-(-cold // PAGE_TOKENS) + 2).astype(np.uint32)
    cold_rows = np.full((len(pages) * PAGE_TOKENS, *encoded.shape[1:]), POISON, np.uint32)
    cold_rows = cold_rows if form.bits else np.full(cold_rows.shape, np.nan, NUMPY[kv_dtype])
    seen = np.arange(0 if a.window is None else max(0, position - a.window + 1), end)
    in_pages = seen[seen < cold]
    cold_rows[pages[in_pages // PAGE_TOKENS] * PAGE_TOKENS + in_pages % PAGE_TOKENS] = encoded[in_pages]
    hot_rows = np.full((capacity(placed), a.num_kv_heads, 2, a.head_dim), np.nan, NUMPY[kv_dtype])
    in_ring = seen[seen >= cold]
    hot_rows[in_ring % capacity(placed)] = np.stack((k[in_ring], v[in_ring]), axis=2)

    op = make_op(a, rows)
    preferences = (KernelPreference(variant, True),)
    context = KernelContext(gpu.caps, rows, kv_dtype, max(end, 4096), {}, {3: placed}, preferences)
    decision = attention.choose(op, context)
    assert decision.variant == variant
    q = rng.standard_normal((rows, op.output.columns)).astype(np.float32)
    inputs = {
        tensor(op.inputs[0]): q, STATE: np.array([position, rows], np.uint32), HOT_ROWS: hot_rows,
        COLD_ROWS: cold_rows, TIERS: np.concatenate(([POISON, cold], pages)).astype(np.uint32),
    }  # fmt: skip
    outputs = {tensor(op.output): (q.shape, np.float32)}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    dispatches = attention.dispatches(op, decision, context)
    assert all(len(dispatch.bindings) <= 8 for dispatch in (*dispatches, *placed.before_append))
    found = run(gpu, dispatches, inputs, outputs)[tensor(op.output)]
    expected = cpu.attention(q, k.transpose(1, 0, 2), v.transpose(1, 0, 2), position, a)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < (1e-5 if kv_dtype == "f32" else 2e-3), f"relative error {error}"


@pytest.mark.parametrize(("variant", "layout", "kv_dtype"), every_other(DECODE + PREFILL, LAYOUTS, ["f32", "f16"]))
def test_attention_over_both_tiers(gpu: Gpu, variant: str, layout: str, kv_dtype: DType) -> None:
    check(gpu, variant, layout, shape("GQA", 32), 83, 1 if variant in DECODE else 19, kv_dtype)


@pytest.mark.parametrize(("variant", "layout", "head_dim"), every_other(DECODE + PREFILL, LAYOUTS, [24, 80]))
def test_attention_of_any_head_dim(gpu: Gpu, variant: str, layout: str, head_dim: int) -> None:
    check(gpu, variant, layout, shape("MQA", head_dim), 60, 1 if variant in DECODE else 7)


@pytest.mark.parametrize("window", [10, 40])
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_a_window_hides_the_cold_tier_or_part_of_it(gpu: Gpu, variant: str, window: int) -> None:
    if variant == "decode_split":
        check(gpu, variant, "tiered-int8", shape("GQA", 32, window + 290), 390, 1)
    else:
        check(gpu, variant, "tiered-int8", shape("GQA", 32, window), 90, 1 if variant in DECODE else 9)


@pytest.mark.parametrize("cold", [0, 1, 32, 70])
@pytest.mark.parametrize("variant", ["decode_online", "prefill_tiled"])
def test_a_boundary_anywhere(gpu: Gpu, variant: str, cold: int) -> None:
    """All hot, all cold (after a truncation), and between."""
    check(gpu, variant, "tiered-int4", shape("MHA", 16), 70, 1 if variant in DECODE else 3, cold=cold)


def test_only_the_first_layer_moves_the_boundary() -> None:
    first, later = (make_layout("tiered-int8", 2, 16, "f32", layer).before_append for layer in LAYERS)
    assert [dispatch.shader for dispatch in first] == ["kv/advance_tiers.wgsl", "kv/demote.wgsl"]
    assert [dispatch.shader for dispatch in later] == ["kv/demote.wgsl"]
    assert first[1].constants == later[0].constants, "a pipeline a layer would be compiled"
    assert later[0].bindings == (Binding("kv", "5.hot"), Binding("kv", "5.cold"), TIERS)
