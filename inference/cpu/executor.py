"""The NumPy executor: runs the same plan as the GPU, in f32. The reference in tests, the fallback without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Literal

import numpy as np
from threadpoolctl import ThreadpoolController

from inference.cpu import ops as cpu
from inference.events import MemoryStats
from inference.executor import SampleRequest, StepCost, StepTimes, host_stream
from inference.host_memory import peak_resident_bytes
from inference.kernels.base import Decision
from inference.kv.factory import NumpyCaches, NumpyStore
from inference.kv.layout import KvCache, LayerGroup
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig, RopeConfig, StoredWeight
from inference.plan.build import build
from inference.plan.explain import PlanRow, explain
from inference.plan.fuse import fuse
from inference.plan.ops import (
    ActivationGate,
    Add,
    Attention,
    Copy,
    Embed,
    ExpertMatmul,
    KvAppend,
    Logits,
    Lora,
    Matmul,
    Op,
    Plan,
    RmsNorm,
    Rope,
    Route,
    Sample,
    Softcap,
    TensorRef,
    WeightRef,
)
from inference.rope import RopeTables
from inference.sampler import sample
from inference.sampling import Sampled, Sampling
from inference.weights import WeightStore

Observer = Callable[[Op, np.ndarray], None]
"""Called with each op and its output, for tests and probes."""

NumpyCache = KvCache[NumpyStore]

PREFILL_CHUNK = 256
# A one-row product is bound by memory: OpenBLAS's threads wait on each other longer than they share the work.
DECODE_THREADS = 1
MATMUL_REASON = "f32 product through BLAS, {threads}: the reference that every other kernel is compared with"


class NumpyExecutor:
    """Holds the weights as float32 and runs plans op by op."""

    device: Literal["webgpu", "cpu"] = "cpu"
    adapter = "NumPy"
    chunk = PREFILL_CHUNK
    logits_chunk = PREFILL_CHUNK

    def __init__(
        self, config: ModelConfig, store: WeightStore, groups: Sequence[LayerGroup], fused: bool = True
    ) -> None:
        self.config = config
        self._store = store
        self._fused = fused
        self.adapters = AdapterSet(config)
        self._adapter_weights: dict[WeightRef, np.ndarray] = {}
        self._weights: dict[tuple[StoredWeight, ...], np.ndarray] = {}
        self._plans: dict[tuple[bool, Logits, bool], Plan] = {}
        self._rope = RopeTables()
        self._blas = ThreadpoolController()
        self._caches = NumpyCaches(config, groups, self.chunk)
        # Never filled: layouts for what is asked without a sequence at hand.
        self._any_cache = self._caches.new(config.max_context)
        self._kv_peak = 0
        store.check(build(config, 1, "last"))

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Dequantise every weight to float32; `progress` hears (weights done, weights in all)."""
        refs = [ref for op in self.plan(1, "last").ops for ref in op.weights]
        for done, ref in enumerate(refs):
            self._weight(ref)
            if progress is not None:
                progress(done + 1, len(refs))

    def set_adapters(self, adapters: AdapterSet) -> None:
        self.adapters = adapters
        self._plans.clear()
        self._adapter_weights.clear()

    def new_cache(self, context: int) -> NumpyCache:
        return self._caches.new(context)

    def plan(self, rows: int, logits: Logits, sampled: bool = False) -> Plan:
        """The plan for one row or many (up to `chunk`), made once."""
        key = (rows == 1, logits, sampled)
        if key not in self._plans:
            ranks = self.adapters.ranks
            plan = build(self.config, 1 if rows == 1 else self.chunk, logits, sampled, lora_ranks=ranks)
            self._plans[key] = fuse(plan, self._store.formats | self.adapters.formats) if self._fused else plan
        return self._plans[key]

    def forward(
        self, cache: NumpyCache, ids: Sequence[int], logits: Logits, observe: Observer | None = None
    ) -> np.ndarray | None:
        """Append up to `chunk` tokens; returns float32 logits (V,) for "last", (T, V) for "all", None for "none"."""
        self._begin(cache, ids)
        with self._threads(len(ids)):
            output = self._run_plan(self.plan(len(ids), logits), cache, ids, observe)
        cache.length += len(ids)
        self._kv_peak = max(self._kv_peak, self._kv_bytes())
        if logits == "none":
            return None
        return output[0] if logits == "last" else output

    def time_step(self, cache: NumpyCache, ids: Sequence[int]) -> StepTimes:
        before = cache.length
        self._begin(cache, ids)
        with self._threads(len(ids)):
            marks = [time.perf_counter()]
            plan = self.plan(len(ids), "last")
            logits = self._run_plan(plan, cache, ids, lambda op, output: marks.append(time.perf_counter()))
            sample(logits[0], Sampling(), 0, before, None)
            marks.append(time.perf_counter())
        cache.length += len(ids)
        cache.truncate(before)
        return StepTimes(tuple(end - start for start, end in pairwise(marks)), marks[-1] - marks[0])

    def stream(self, cache: NumpyCache, ids: Sequence[int], request: SampleRequest) -> Generator[Sampled, None, None]:
        return host_stream(self, cache, ids, request, self.config.vocab_size)

    def plan_rows(self, phase: Literal["decode", "prefill"]) -> list[PlanRow]:
        plan = self.plan(1 if phase == "decode" else self.chunk, "last", sampled=True)
        threads = "one thread" if phase == "decode" else "all threads"
        decisions = []
        for op in plan.ops:
            reason = (
                MATMUL_REASON.format(threads=threads)
                if isinstance(op.attributes, Matmul | ExpertMatmul)
                else "NumPy, f32"
            )
            if isinstance(op.attributes, KvAppend | Attention):
                reason = f"{reason}; {self._any_cache.store(_layer(op)).group.layout} cache"
            decisions.append(Decision("reference", reason))
        return explain(plan, decisions, "cpu", dict.fromkeys(self._store.formats | self.adapters.formats, "f32"))

    def memory(self) -> MemoryStats:
        held = {id(array): array.nbytes for array in self._weights.values()}
        by_format = {"f32": sum(held.values())}
        if adapters := sum(array.nbytes for array in self._adapter_weights.values()):
            by_format["adapters f32"] = adapters
        weights = sum(by_format.values())
        kv = self._kv_bytes()
        return MemoryStats(
            device="cpu",
            weights_by_format=by_format,
            weights_bytes=weights,
            kv_bytes=kv,
            peak_bytes=weights + max(self._kv_peak, kv),
            host_peak_bytes=peak_resident_bytes(),
        )

    def step_cost(self) -> StepCost:
        return StepCost()

    def close(self) -> None:
        self._weights.clear()
        self._caches.close()

    def _begin(self, cache: NumpyCache, ids: Sequence[int]) -> None:
        cache.note(cache.length, ids)
        cache.ensure(cache.length + len(ids))
        cache.begin()

    def _threads(self, rows: int) -> AbstractContextManager[object]:
        """The BLAS threads that a step of `rows` uses."""
        limit: AbstractContextManager[object] = self._blas.limit(
            limits=DECODE_THREADS if rows == 1 else None, user_api="blas"
        )
        return limit

    def _run_plan(self, plan: Plan, cache: NumpyCache, ids: Sequence[int], observe: Observer | None) -> np.ndarray:
        """The output of the last op."""
        values: dict[str, np.ndarray] = {}
        tokens = np.asarray(ids, dtype=np.int64)
        for op in plan.ops:
            output = self._run(op, values, tokens, cache)
            values[op.output.name] = output
            if observe is not None:
                observe(op, output)
        return output

    def _append(self, op: Op, cache: NumpyCache, k: np.ndarray, v: np.ndarray) -> None:
        shape = (k.shape[0], self.config.num_kv_heads, self.config.head_dim)
        # (T, K * E) -> (K, T, E)
        by_head = [array.reshape(shape).transpose(1, 0, 2) for array in (k, v)]
        cache.store(_layer(op)).append(_layer(op), cache.length, *by_head)

    def _kv_bytes(self) -> int:
        return self._caches.nbytes

    def _weight(self, ref: WeightRef) -> np.ndarray:
        """(rows, columns) float32. A tied head and embedding are one array."""
        if ref.sources[0] in self.adapters.formats:
            if ref not in self._adapter_weights:
                self._adapter_weights[ref] = self.adapters.load(ref).dequantize()
            return self._adapter_weights[ref]
        key = self._store.storage(ref)
        if key not in self._weights:
            self._weights[key] = self._store.load(ref).dequantize()
        return self._weights[key]

    def _rope_rows(self, rope: RopeConfig, cache: NumpyCache, rows: int) -> np.ndarray:
        return self._rope.rows(rope, cache.length, cache.length + rows)

    def _run(self, op: Op, values: dict[str, np.ndarray], tokens: np.ndarray, cache: NumpyCache) -> np.ndarray:
        inputs = [_read(values, tensor) for tensor in op.inputs]
        weights = [self._weight(ref) for ref in op.weights]
        rows = len(tokens)
        match op.attributes:
            case Embed(scale):
                return weights[0][tokens] * np.float32(scale)
            case RmsNorm(eps, _, residual):
                normed = cpu.rmsnorm(inputs[0], weights[0][0], eps)
                return normed + inputs[1] if residual else normed
            case Matmul() as matmul:
                return _matmul(matmul, inputs, weights)
            case Lora():
                x, y = inputs
                return y + x @ weights[0].T @ weights[1].T
            case Add(scale):
                return inputs[0] * np.float32(scale) + inputs[1]
            case Rope(rope, head_dim):
                return cpu.rotate(inputs[0], self._rope_rows(rope, cache, rows), head_dim, rope.interleaved)
            case KvAppend(rope=None):
                self._append(op, cache, inputs[0], inputs[1])
                return inputs[0]
            case KvAppend(head_dim=head_dim, rope=rope, qk_norm_eps=eps):
                q, k, v = inputs
                if eps is not None:
                    q, k = cpu.rmsnorm(q, weights[0][0], eps), cpu.rmsnorm(k, weights[1][0], eps)
                assert rope is not None
                table = self._rope_rows(rope, cache, rows)
                self._append(op, cache, cpu.rotate(k, table, head_dim, rope.interleaved), v)
                return cpu.rotate(q, table, head_dim, rope.interleaved)
            case Attention() as attention:
                first = 0 if attention.window is None else max(0, cache.length - attention.window + 1)
                k, v = cache.store(_layer(op)).view(_layer(op), first, cache.length + rows)
                sinks = weights[0][:, 0] if attention.sinks else None
                return cpu.attention(inputs[0], k, v, cache.length, attention, first, sinks)
            case ActivationGate(activation):
                return cpu.gate(inputs[0], inputs[1], activation)
            case Route() as route:
                return cpu.route(inputs[0], route)
            case ExpertMatmul() as experts:
                return cpu.expert_matmul(inputs[0], inputs[1], weights, experts)
            case Softcap(cap):
                return cpu.softcap(inputs[0], cap)
            case Copy():
                return inputs[0][-1:]
            case Sample():
                raise AssertionError("sampling reads the logits of forward()")


def _read(values: dict[str, np.ndarray], tensor: TensorRef) -> np.ndarray:
    if tensor.parent is None:
        return values[tensor.name]
    return values[tensor.parent.name][:, tensor.first_column : tensor.first_column + tensor.columns]


def _layer(op: Op) -> int:
    assert op.layer is not None
    return op.layer


def _matmul(matmul: Matmul, inputs: list[np.ndarray], weights: list[np.ndarray]) -> np.ndarray:
    x = inputs[0]
    if matmul.norm_eps is not None:
        x = cpu.rmsnorm(x, weights[-1][0], matmul.norm_eps)
    product = x @ weights[0].T  # (T, rows of W)
    if matmul.bias:
        product += weights[1][:, 0]
    if matmul.lora:
        product += inputs[1] @ weights[2 if matmul.bias else 1].T
    if matmul.activation is not None:
        gate, up = np.split(product, 2, axis=1)
        product = cpu.gate(gate, up, matmul.activation)
    if matmul.scale != 1:
        product *= np.float32(matmul.scale)
    return product + inputs[-1] if matmul.residual else product
