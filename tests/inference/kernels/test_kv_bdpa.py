"""The bdpa cache's kernels against NumPy: the index of a step, what is stored, attention over the same cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.formats.planar import from_dense
from inference.kernels import attention, simple
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import STATE, Binding, CacheLayout, KernelContext, tensor
from inference.kv.bdpa import GpuBdpa, GpuBdpaPages, NumpyBdpa, NumpyBdpaPages
from inference.kv.bdpa_index import NO_SLOT, BasisIndex
from inference.kv.gpu_store import GpuMemory
from inference.kv.host_arrays import HostMemory
from inference.kv.layout import LayerGroup
from inference.kv.page_pool import PAGE_TOKENS, pages_for
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.plan.ops import Attention, DType, KvAppend, Op, TensorRef, WeightRef
from inference.rope import rope_table
from tests.inference.kernels.harness import Gpu, place_weight, run

pytestmark = pytest.mark.gpu

CONTEXT = 512
VOCAB = 300
GROUP = LayerGroup("bdpa", (0,), None, "asked for")
NUMPY = {"f32": np.float32, "f16": np.float16}
ENTRIES, KNOWN = Binding("kv", "0.entries"), Binding("kv", "0.known")
BASIS, DIFFERENCES = Binding("kv", "0.basis"), Binding("kv", "0.differences")
DECODE = ["decode_split", "decode_online", "decode_streaming"]
PREFILL = ["prefill_tiled", "prefill_small", "prefill_streaming"]


def make_config(heads: int, kv_heads: int, head_dim: int, rope: RopeConfig) -> ModelConfig:
    return ModelConfig(
        family="test", name="test", hidden_size=64, intermediate_size=64, num_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, vocab_size=VOCAB, max_context=CONTEXT, norm_eps=1e-6, activation="silu",
        attention_scale=head_dim**-0.5, layers=(LayerConfig(None, rope),), weights={},
    )  # fmt: skip


def make_layout(config: ModelConfig) -> CacheLayout:
    memory = GpuMemory(None, None, "f32", 256, 4, 2**27)  # type: ignore[arg-type]  # nothing is allocated
    return GpuBdpa(GROUP, config, CONTEXT, GpuBdpaPages(GROUP, config, memory), memory).layout(0)


class Cache:
    """A NumPy cache and the same as the arrays of the GPU's bindings. Its pages are in no order."""

    def __init__(self, config: ModelConfig, ids: Sequence[int], room: int) -> None:
        self.pages = NumpyBdpaPages(GROUP, config, 2**31, HostMemory())
        other = NumpyBdpa(GROUP, config, self.pages)
        self.store = NumpyBdpa(GROUP, config, self.pages)
        for tokens in range(PAGE_TOKENS, room + PAGE_TOKENS, PAGE_TOKENS):
            for store in (other, self.store):
                store.ensure(tokens, 0)
        self.store.note(0, ids)

    def gpu_arrays(self, length: int) -> dict[Binding, np.ndarray]:
        """With the entries of the first `length` tokens."""
        held = self.store._held
        entries = np.zeros((pages_for(CONTEXT) + CONTEXT, 2), np.uint32)
        entries[: len(held.basis.pages), 0] = held.basis.pages
        entries[: len(held.differences.pages), 1] = held.differences.pages
        entries[pages_for(CONTEXT) :][:length] = held.index.entries(0, length)
        return {
            ENTRIES: entries,
            BASIS: self.pages.basis.tokens(0).copy(),
            DIFFERENCES: self.pages.differences.tokens(0).copy(),
        }


def step_entries(gpu: Gpu, entries: np.ndarray, known: np.ndarray, position: int, ids: Sequence[int]) -> None:
    """Run the index kernel on a step, in place."""
    layout = make_layout(make_config(2, 1, 16, RopeConfig(1e4, 16, True)))
    inputs = {
        Binding("tokens"): np.asarray(ids, np.uint32), STATE: np.array([position, len(ids)], np.uint32),
        ENTRIES: entries, KNOWN: known,
    }  # fmt: skip
    found = run(gpu, layout.before_append, inputs, {b: (inputs[b].shape, np.uint32) for b in (ENTRIES, KNOWN)})
    entries[:], known[:] = found[ENTRIES], found[KNOWN]


@pytest.mark.parametrize("different", [1, 9, VOCAB])
def test_the_index_is_the_host_s(gpu: Gpu, different: int) -> None:
    """Steps of all sizes, and going back: what the steps taken back left behind must not count."""
    rng = np.random.default_rng(different)
    entries = np.zeros((pages_for(CONTEXT) + CONTEXT, 2), np.uint32)
    known = np.zeros(CONTEXT + VOCAB, np.uint32)
    index = BasisIndex()
    for keep, rows in ((0, 1), (1, 1), (2, 70), (72, 256), (40, 9), (49, 64), (20, 1), (0, 33), (33, 256), (5, 7)):
        ids = rng.integers(0, different, rows).tolist()
        index.note(keep, ids)
        step_entries(gpu, entries, known, keep, ids)
        found = entries[pages_for(CONTEXT) :][: keep + rows]
        np.testing.assert_array_equal(found, index.entries(0, keep + rows))


@pytest.mark.parametrize(("dtype", "qk_norm"), [("f32", False), ("f32", True), ("f16", True)])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "interleaved"), [(64, 64, True), (24, 16, False), (80, 36, True), (260, 256, False)]
)
def test_append(gpu: Gpu, dtype: DType, qk_norm: bool, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    """A step with ids that are new, known from before the step, and met twice in it."""
    if dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    rng = np.random.default_rng(head_dim)
    heads, kv_heads, before, rows, max_rows = 4, 2, 40, 70, 72
    q_size, kv_size = heads * head_dim, kv_heads * head_dim
    rope = RopeConfig(1e4, rotary_dim, interleaved)
    config = make_config(heads, kv_heads, head_dim, rope)
    ids = [*range(before), *rng.integers(20, 60, rows).tolist()]
    cache = Cache(config, ids, len(ids))
    k, v = rng.standard_normal((2, kv_heads, before, head_dim)).astype(np.float32)
    cache.store.append(0, 0, k, v)
    inputs = cache.gpu_arrays(len(ids))

    qkv = TensorRef("qkv", max_rows, q_size + 2 * kv_size, dtype)
    parts = (qkv.view("q", 0, q_size), qkv.view("k", q_size, kv_size), qkv.view("v", q_size + kv_size, kv_size))
    y = TensorRef("y", max_rows, q_size, dtype)
    refs = [WeightRef((name,), 1, head_dim) for name in ("q_norm", "k_norm")] if qk_norm else []
    weights = [from_dense(rng.uniform(0.5, 1.5, (1, head_dim)).astype(np.float32)) for _ in refs]
    norms = {
        ref: place_weight(str(index), weight) for index, (ref, weight) in enumerate(zip(refs, weights, strict=True))
    }
    attributes = KvAppend(heads, kv_heads, head_dim, rope, 1e-6 if qk_norm else None)
    op = Op("kv_append", "append", 0, parts, y, attributes, tuple(refs))
    layout = replace(make_layout(config), before_append=())
    placed = {ref: weight for ref, (weight, _) in norms.items()}
    context = KernelContext(gpu.caps, max_rows, dtype, 1, placed, {0: layout})
    values = rng.standard_normal((max_rows, qkv.columns)).astype(NUMPY[dtype])
    values[:, q_size + kv_size :] *= 300
    inputs |= {
        tensor(qkv): values, Binding("rope", "0"): rope_table(rope, 0, CONTEXT),
        STATE: np.array([before, rows], np.uint32),
    }  # fmt: skip
    for _, planes in norms.values():
        inputs |= planes
    outputs = {
        tensor(y): ((max_rows, q_size), NUMPY[dtype]),
        BASIS: (inputs[BASIS].shape, np.float16), DIFFERENCES: (inputs[DIFFERENCES].shape, np.uint32),
    }  # fmt: skip
    found = run(gpu, simple.dispatches(op, simple.choose(op, context), context), inputs, outputs)

    wide = values[:rows].astype(np.float32)
    new_q, new_k, new_v = np.split(wide, [q_size, q_size + kv_size], axis=1)
    if qk_norm:
        scales = [norms[ref][1][norms[ref][0].bindings(0)[0]].view(np.float32)[0] for ref in refs]
        new_q, new_k = cpu.rmsnorm(new_q, scales[0], 1e-6), cpu.rmsnorm(new_k, scales[1], 1e-6)
    turn = rope_table(rope, before, rows)
    by_head = [
        x.reshape(rows, kv_heads, head_dim).transpose(1, 0, 2)
        for x in (cpu.rotate(new_k, turn, head_dim, interleaved), new_v)
    ]
    cache.store.append(0, before, *by_head)
    expected_q = cpu.rotate(new_q, turn, head_dim, interleaved)
    error = np.linalg.norm(found[tensor(y)][:rows] - expected_q) / np.linalg.norm(expected_q)
    assert error < (1e-6 if dtype == "f32" else 1e-3)

    # A number between two f16 may go to either: the rope there and back moves it by a rounding of f32.
    expected = cache.pages.basis.tokens(0).astype(np.float32)
    np.testing.assert_allclose(found[BASIS].astype(np.float32), expected, rtol=1e-3, atol=1e-6)
    words, expected_words = found[DIFFERENCES], cache.pages.differences.tokens(0)
    scales = words[..., :1].copy().view(np.float16).astype(np.float32)
    expected_scales = expected_words[..., :1].copy().view(np.float16).astype(np.float32)
    np.testing.assert_allclose(scales, expected_scales, rtol=2e-3)
    integers, expected_integers = (x[..., 1:].copy().view(np.int8).astype(int) for x in (words, expected_words))
    assert np.abs(integers - expected_integers).max() <= 1
    assert np.count_nonzero(integers), "no token was stored as a difference"
    slots = cache.store._held.index.entries(before, len(ids))[:, 1]
    assert 0 < np.count_nonzero(slots == NO_SLOT) < rows


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "interleaved", "window"),
    [(64, 64, False, None), (80, 36, True, 290), (24, 16, False, 290)],
)
@pytest.mark.parametrize("variant", DECODE + PREFILL)
def test_attention(
    gpu: Gpu, variant: str, head_dim: int, rotary_dim: int, interleaved: bool, window: int | None
) -> None:
    if variant in ("decode_split", "decode_online") and not gpu.caps.subgroup_size:
        pytest.skip("the adapter has no subgroups")
    gpu = replace(gpu, caps=replace(gpu.caps, software=False))
    rng = np.random.default_rng(head_dim + interleaved)
    heads, kv_heads, position = 6, 2, 320
    rows = 1 if variant in DECODE else 21
    rope = RopeConfig(1e4, rotary_dim, interleaved)
    config = make_config(heads, kv_heads, head_dim, rope)
    num_keys = position + rows
    cache = Cache(config, rng.integers(0, 150, num_keys).tolist(), num_keys)
    k = 2 * rng.standard_normal((kv_heads, num_keys, head_dim)).astype(np.float32)
    cache.store.append(0, 0, k, rng.standard_normal(k.shape).astype(np.float32))

    a = Attention(heads, kv_heads, head_dim, head_dim**-0.5, window, None)
    columns = heads * head_dim
    op = Op("attention", "test", 0, (TensorRef("q", rows, columns, "f32"),), TensorRef("out", rows, columns, "f32"), a)
    context = KernelContext(
        gpu.caps, rows, "f32", 4096, {}, {0: make_layout(config)}, preferences=(KernelPreference(variant, True),)
    )
    q = rng.standard_normal((rows, columns)).astype(np.float32)
    inputs = cache.gpu_arrays(num_keys) | {
        tensor(op.inputs[0]): q, STATE: np.array([position, rows], np.uint32),
        Binding("rope", "0"): rope_table(rope, 0, CONTEXT),
    }  # fmt: skip
    outputs = {tensor(op.output): ((rows, columns), np.float32)}
    if scratch := attention.scratch_bytes(op, context):
        outputs[attention.SCRATCH] = ((scratch // 4,), np.float32)
    decision = attention.choose(op, context)
    assert decision.variant == variant
    found = run(gpu, attention.dispatches(op, decision, context), inputs, outputs)[tensor(op.output)]
    expected = cpu.attention(q, *cache.store.view(0, 0, num_keys), position, a)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 1e-5, f"relative error {error}"
    # The cache really is another one than that of the keys as they came.
    plain = cpu.attention(q, k, cache.store.view(0, 0, num_keys)[1], position, a)
    assert np.linalg.norm(plain - expected) / np.linalg.norm(expected) > 1e-4
