"""Every KV layout with every attention variant, over caches that the append kernels filled.

The reference is NumPy's attention over NumPy's store of the same layout, which the same keys and values went into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.errors import KernelUnavailable, LayoutUnavailable
from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps
from inference.kernels import attention, simple
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import STATE, Binding, CacheLayout, KernelContext, tensor
from inference.kv.bdpa_index import NO_SLOT
from inference.kv.choose import LAYOUTS, choose_layouts
from inference.kv.factory import GpuCaches, NumpyCaches, NumpyStore
from inference.kv.gpu_store import GpuMemory, GpuStore
from inference.kv.layout import KvCache, LayerGroup
from inference.kv.page_pool import PAGE_TOKENS
from inference.kv.quantize import RowFormat
from inference.kv.tiered import COLD_BITS
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.plan.ops import Attention, DType, KvAppend, Op, TensorRef
from inference.rope import rope_table
from tests.conftest import DATA
from tests.inference.kernels.harness import Gpu, every_other, run
from tests.inference.kernels.test_attention import CAPS, DECODE, NUMPY, PREFILL, make_op
from tests.inference.opening import open_store

HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 2, 32, 60
CONTEXT, CHUNK, HOT = 256, 64, 24
WINDOW = 40
STEPS = (CHUNK, 1, 37, 1, CHUNK, 21)
"""Rows of the steps that fill a cache: rings of the window go round, and tokens leave the hot tier."""
ROPE = RopeConfig(1e4, HEAD_DIM, False)

TOLERANCE = {layout: 1e-5 if layout in ("contiguous", "paged", "ring", "tiered") else 5e-3 for layout in LAYOUTS}
"""Relative error in f32. The integers of the other layouts may be a step apart from NumPy's where rounding ties: on an
NVIDIA H200 that makes 3.6e-3. Attention on identical integers is compared in test_kv_bdpa.py and test_kv_tiered.py."""
F16_TOLERANCE = 2e-3

GOLDEN = DATA / "plans" / "kv_rejections.txt"


def make_config(window: int | None, head_dim: int = HEAD_DIM) -> ModelConfig:
    """A model of one layer."""
    config, _ = open_store(DATA / "tiny" / "llama" / "gguf" / "model-f16.gguf")
    rope = replace(ROPE, rotary_dim=head_dim)
    return replace(
        config, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, layers=(LayerConfig(window, rope),)
    )


def groups_for(config: ModelConfig, layout: str) -> list[LayerGroup]:
    return [replace(group, hot=min(group.hot, HOT)) for group in choose_layouts(config, layout)]


@dataclass
class Filled:
    """The same tokens in a cache on the GPU and in one of NumPy."""

    kv_dtype: DType
    gpu: KvCache[GpuStore]
    numpy: KvCache[NumpyStore]

    @property
    def layout(self) -> CacheLayout:
        return self.gpu.store(0).layout(0)

    def append(
        self,
        gpu: Gpu,
        rows: int,
        rng: np.random.Generator,
        max_rows: int | None = None,
        ids: np.ndarray | None = None,
    ) -> None:
        """One step of `rows` random rows; those beyond, up to `max_rows`, are not the step's."""
        max_rows = max_rows or rows
        position = self.gpu.length
        ids = rng.integers(0, VOCABULARY, rows) if ids is None else ids
        q, k, v = (
            rng.standard_normal((max_rows, n * HEAD_DIM)).astype(np.float32) for n in (HEADS, KV_HEADS, KV_HEADS)
        )
        k *= 2  # neither a flat softmax nor a single key
        table = rope_table(ROPE, 0, CONTEXT)
        for kv in (self.gpu, self.numpy):
            kv.note(position, ids.tolist())
            kv.ensure(position + rows)
        refs = [TensorRef(name, max_rows, x.shape[1], "f32") for name, x in (("q", q), ("k", k), ("v", v))]
        y = TensorRef("y", max_rows, HEADS * HEAD_DIM, "f32")
        op = Op("kv_append", "append", 0, tuple(refs), y, KvAppend(HEADS, KV_HEADS, HEAD_DIM, ROPE, None))
        context = KernelContext(gpu.caps, max_rows, self.kv_dtype, CONTEXT, {}, {0: self.layout})
        dispatches = simple.dispatches(op, simple.choose(op, context), context)
        inputs = {
            **dict(zip(map(tensor, refs), (q, k, v), strict=True)), Binding("rope", "0"): table,
            STATE: np.array([position, rows], np.uint32), Binding("tokens"): ids.astype(np.uint32),
        }  # fmt: skip
        self.gpu.begin()
        self.numpy.begin()
        run(gpu, dispatches, inputs, {tensor(y): ((max_rows, y.columns), np.float32)}, self.gpu.stores[0].buffers())
        turned = cpu.rotate(k[:rows], table[position : position + rows], HEAD_DIM, False)
        by_head = [x.reshape(rows, KV_HEADS, HEAD_DIM).transpose(1, 0, 2) for x in (turned, v[:rows])]
        if self.layout.name != "bdpa":  # which has a precision of its own
            by_head = [x.astype(NUMPY[self.kv_dtype]).astype(np.float32) for x in by_head]
        self.numpy.store(0).append(0, position, *by_head)
        self.gpu.length += rows
        self.numpy.length += rows

    def contents(self, gpu: Gpu) -> dict[str, np.ndarray]:
        """The words of every buffer, by the last part of its name."""
        return {
            binding.name.partition(".")[2]: np.frombuffer(gpu.device.queue.read_buffer(buffer), np.uint32)
            for binding, buffer in self.gpu.store(0).buffers().items()
        }


def empty(gpu: Gpu, layout: str, window: int | None, kv_dtype: DType = "f32") -> Filled:
    config = make_config(window)
    groups = groups_for(config, layout)
    pool = BufferPool(gpu.device, gpu.caps.max_buffer)
    memory = GpuMemory(gpu.device, pool, kv_dtype, CHUNK, 0, gpu.caps.max_binding)
    caches = GpuCaches(config, groups, memory).new(CONTEXT), NumpyCaches(config, groups, CHUNK).new(CONTEXT)
    return Filled(kv_dtype, *caches)


_filled: dict[tuple[str, int | None, DType], Filled] = {}


@pytest.fixture
def filled(gpu: Gpu, layout: str, window: int | None, kv_dtype: DType) -> Filled:
    """A cache after STEPS, made once for all variants, which only read it."""
    if kv_dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    key = layout, window, kv_dtype
    if key not in _filled:
        made = _filled[key] = empty(gpu, layout, window, kv_dtype)
        rng = np.random.default_rng(11)
        for rows in STEPS:
            made.append(gpu, rows, rng)
    return _filled[key]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("variant", "layout", "window", "kv_dtype"),
    # A ring has a window.
    [
        case
        for case in every_other(DECODE + PREFILL, LAYOUTS, [None, WINDOW], ["f32", "f16"])
        if case.values[1:3] != ("ring", None)
    ],
)
def test_attention(gpu: Gpu, filled: Filled, variant: str, layout: str, window: int | None, kv_dtype: DType) -> None:
    if variant in ("decode_split", "decode_online") and not gpu.caps.subgroup_size:
        pytest.skip("the adapter has no subgroups")
    rows = 1 if variant in DECODE else STEPS[-1]
    a = Attention(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, window, None)
    op = replace(make_op(a, rows), layer=0)
    position = filled.gpu.length - rows
    preferences = (KernelPreference(variant, True),)
    context = KernelContext(gpu.caps, rows, kv_dtype, 4096, {}, {0: filled.layout}, preferences)
    decision = attention.choose(op, context)
    assert decision.variant == variant
    q = np.random.default_rng(12).standard_normal((rows, op.output.columns)).astype(np.float32)
    inputs = {
        tensor(op.inputs[0]): q, STATE: np.array([position, rows], np.uint32),
        Binding("rope", "0"): rope_table(ROPE, 0, CONTEXT),
    }  # fmt: skip
    outputs: dict[Binding, tuple[tuple[int, ...], Any]] = {tensor(op.output): ((rows, op.output.columns), np.float32)}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    dispatches = attention.dispatches(op, decision, context)
    found = run(gpu, dispatches, inputs, outputs, filled.gpu.store(0).buffers())[tensor(op.output)]

    first = 0 if window is None else max(0, position - window + 1)
    k, v = filled.numpy.store(0).view(0, first, position + rows)
    expected = cpu.attention(q, k, v, position, a, first)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < max(TOLERANCE[layout], F16_TOLERANCE if kv_dtype == "f16" else 0.0), f"relative error {error}"


def writable(made: Filled, layout: str, positions: np.ndarray, first_hot: int) -> dict[str, np.ndarray]:
    """Where a step at `positions` may write: token slots (of bdpa's index, entries) of each buffer.

    `first_hot` is where the boundary between the tiers was. Buffers that are not named must stay as they are.
    """
    store: Any = made.gpu.store(0)
    match layout:
        case "contiguous":
            return dict.fromkeys(("k", "v"), positions)
        case "ring":
            capacity = store.layout(0).constants["RING_CAPACITY"]
            return dict.fromkeys(("k", "v"), store.places[0] * capacity + positions % capacity)
        case "paged":
            pages = np.array(store.table.pages)
            return dict.fromkeys(("k", "v"), pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS)
        case "bdpa":
            entries = store._held.index.entries(positions[0], positions[-1] + 1)
            rows, slots = entries[:, 0], entries[:, 1][entries[:, 1] != NO_SLOT]
            return {
                "basis": store._held.basis.places(rows[entries[:, 1] == NO_SLOT]),
                "differences": store._held.differences.places(slots),
                "entries": store.layout(0).constants["INDEX_AT"] + positions,
                "known": np.arange(CONTEXT + make_config(None).vocab_size),  # the index's own book-keeping
            }
        case _:
            demoted = np.arange(first_hot, store.tiers.cold)
            return {
                "hot": positions % store.tiers.capacity,
                "cold": np.array(store.table.pages)[demoted // PAGE_TOKENS] * PAGE_TOKENS + demoted % PAGE_TOKENS,
                "tiers": np.arange(2),
            }


def slot_words(layout: str, kv_dtype: DType) -> dict[str, int]:
    """Words of a token's slot in each buffer."""
    row = KV_HEADS * HEAD_DIM * np.dtype(NUMPY[kv_dtype]).itemsize // 4
    cold_bits = COLD_BITS.get(layout, 0)
    cold = KV_HEADS * RowFormat(cold_bits, HEAD_DIM).columns if cold_bits else 2 * row
    basis, difference = KV_HEADS * HEAD_DIM, KV_HEADS * RowFormat(8, HEAD_DIM).columns  # K and V in f16; 8 bits
    return {
        "k": row, "v": row, "hot": 2 * row, "cold": cold, "tiers": 1, "page_table": 1, "ring": 1,
        "basis": basis, "differences": difference, "entries": 2, "known": 1,
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_writes_its_own_slots_and_no_other(gpu: Gpu, layout: str, kv_dtype: DType) -> None:
    """In a cache that is nearly full, with a fork that shares its pages, and with rows that are not the step's."""
    if kv_dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    rng = np.random.default_rng(13)
    made = empty(gpu, layout, WINDOW if layout == "ring" else None, kv_dtype)
    for rows in STEPS:
        made.append(gpu, rows, rng)
    fork = Filled(kv_dtype, made.gpu.fork(), made.numpy.fork())
    for cache, rows in ((made, 19), (fork, 7)):
        store: Any = cache.gpu.store(0)
        position, first_hot = cache.gpu.length, store.tiers.cold if layout in COLD_BITS else 0
        ids = rng.integers(0, VOCABULARY, rows)
        cache.gpu.note(position, ids.tolist())
        cache.gpu.ensure(position + rows)
        before = cache.contents(gpu)
        cache.append(gpu, rows, rng, max_rows=32, ids=ids)
        after = cache.contents(gpu)
        slots = writable(cache, layout, np.arange(position, position + rows), first_hot)
        assert slots.keys() <= after.keys()
        for name, words in slot_words(layout, kv_dtype).items():
            if name not in after:
                continue
            whole = after[name].size // words * words
            changed = (after[name] != before[name])[:whole].reshape(-1, words).any(axis=1)
            expected = slots.get(name, np.array([], np.int64))
            assert set(np.flatnonzero(changed)) <= set(expected.tolist()), (
                f"{name}: a slot of another token was written"
            )
            if name in ("k", "v", "hot", "cold", "basis"):
                assert changed[expected].all(), f"{name}: a slot of the step was not written"


# What cannot be combined


SITUATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a large GPU": ({}, {}),
    "few keys": ({}, {"bucket": 256}),
    "a software adapter": ({"software": True}, {}),
    "no subgroups": ({"subgroup_size": 0, "subgroup_reason": "the adapter has no subgroups"}, {}),
    "8 KiB of workgroup memory, head dimension 256": ({"max_workgroup_storage": 8192}, {"head_dim": 256}),
    "1 KiB of workgroup memory, head dimension 256": ({"max_workgroup_storage": 1024}, {"head_dim": 256}),
    "keys and values in f16 without f16 on the device": ({"f16": False}, {"kv_dtype": "f16"}),
    "head dimension 20": ({}, {"head_dim": 20}),
    "head dimension 18": ({}, {"head_dim": 18}),
    "no sliding window": ({}, {"window": None}),
}
"""By name: what differs from a large GPU, and what differs in the model or the request."""


def rejected(
    layout: str,
    caps: DeviceCaps,
    window: int | None = WINDOW * 20,
    head_dim: int = 64,
    bucket: int = 4096,
    kv_dtype: DType = "f32",
) -> list[str]:
    """The reasons for which the layout, or attention variants with it, cannot run or are passed over."""
    config = make_config(window, head_dim)
    try:
        groups = groups_for(config, layout)
    except LayoutUnavailable as error:
        return [str(error)]
    memory = GpuMemory(None, None, kv_dtype, CHUNK, 4, caps.max_binding)  # type: ignore[arg-type]
    placed = GpuCaches(config, groups, memory).new(CONTEXT).store(0).layout(0)
    a = Attention(HEADS, KV_HEADS, head_dim, head_dim**-0.5, window, None)
    reasons = []
    for names, rows in ((DECODE, 1), (PREFILL, CHUNK)):
        op = replace(make_op(a, rows), layer=0)
        for name in names:
            context = KernelContext(caps, rows, kv_dtype, bucket, {}, {0: placed})
            try:
                attention.choose(op, replace(context, preferences=(KernelPreference(name, True),)))
            except KernelUnavailable as error:
                reasons.append(str(error))
            else:
                passed_over = dict(attention.choose(op, context).rejected)
                if name in passed_over:
                    reasons.append(f"kernel {name} is passed over unless asked for: {passed_over[name]}")
    return reasons


def rejections() -> str:
    """Every rejected pair of a layout and an attention variant with its reason, by situation."""
    lines = []
    for situation, (caps, request) in SITUATIONS.items():
        lines.append(f"{situation}:")
        reasons = {layout: rejected(layout, replace(CAPS, **caps), **request) for layout in LAYOUTS}
        for found in dict.fromkeys(map(tuple, reasons.values())):
            layouts = [layout for layout in LAYOUTS if tuple(reasons[layout]) == found]
            lines.append(f"  {', '.join(layouts)}:")
            lines += [f"    {reason}" for reason in found or ("every variant can run",)]
    return "\n".join(lines) + "\n"


def test_every_rejection_has_its_reason() -> None:
    """As in tests/data/plans/kv_rejections.txt, which `python -m tests.inference.kernels.test_layouts` writes."""
    assert rejections() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(rejections(), encoding="utf-8")
