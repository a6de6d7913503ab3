"""The NumPy executor: runs the same plan as the GPU, in f32. The reference in tests, the fallback without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
from threadpoolctl import ThreadpoolController

from inference.cpu import ops as cpu
from inference.cpu import rowwise
from inference.cpu.kernels import choose_product, explain_kernel
from inference.cpu.program import Step, make_steps
from inference.cpu.rows import Part, Rows
from inference.cpu.threads import Threads, multiply
from inference.cpu.weights import HostWeights
from inference.events import MemoryStats
from inference.executor import SampleRequest, StepCost, StepTimes, check_batch, host_stream, host_stream_many
from inference.host_memory import peak_resident_bytes
from inference.kernels.base import Decision, KernelPreference
from inference.kv.factory import NumpyCaches, NumpyStore
from inference.kv.layout import KvCache, LayerGroup
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig
from inference.plan.build import build
from inference.plan.explain import PlanRow, explain
from inference.plan.fuse import fuse
from inference.plan.ops import (
    Attention,
    Device,
    Embed,
    KvAppend,
    LastRow,
    Logits,
    Op,
    Plan,
    Rope,
    Sample,
    TensorRef,
    WeightRef,
)
from inference.plan.place import Placement, Segment, part_on, place, segments, whole
from inference.rope import RopeTables
from inference.sampler import sample
from inference.sampling import Sampled, Sampling
from inference.segments import Appended, Values, count_rows, run_step
from inference.weights import WeightStore

Observer = Callable[[Op, np.ndarray], None]
"""Called with each op and its output, for tests and probes."""

NumpyCache = KvCache[NumpyStore]

PREFILL_CHUNK = 256


class NumpyExecutor:
    """Holds the weights as float32 and runs plans op by op. `preferences` is for the kernels of inference.cpu.kernels.

    With a `placement` that gives WebGPU a part too, it is the CPU's half of a SplitExecutor, which asks it to run
    segment after segment; `groups` then holds the layers whose caches are on the CPU.
    Raises KernelUnavailable for a forced kernel that is none of these.
    """

    device: Device = "cpu"
    adapter = "NumPy"
    chunk = PREFILL_CHUNK
    logits_chunk = PREFILL_CHUNK
    max_batch = PREFILL_CHUNK

    def __init__(
        self,
        config: ModelConfig,
        store: WeightStore,
        groups: Sequence[LayerGroup],
        fused: bool = True,
        preferences: Sequence[KernelPreference] = (),
        placement: Placement | None = None,
    ) -> None:
        self.config = config
        self._store = store
        self._fused = fused
        self._placement = placement or whole("cpu", config.num_layers)
        self.adapters = AdapterSet(config)
        self._adapter_weights: dict[WeightRef, np.ndarray] = {}
        self._product = choose_product(preferences)
        self._weights = HostWeights(store, by_columns=self._product.variant == "column_major")
        self._plans: dict[tuple[bool, Logits, bool], Plan] = {}
        self._segments: dict[tuple[bool, Logits], list[Segment]] = {}
        self._steps: dict[tuple[bool, Logits, int], tuple[Step, ...]] = {}
        self._rope = RopeTables()
        self._blas = ThreadpoolController().select(user_api="blas")
        # As many as BLAS would take: it counts the cores that this process may use.
        self._cores = max((library.num_threads for library in self._blas.lib_controllers), default=1)
        self._threads = Threads(1 if self._product.variant == "reference" else self._cores)
        self._caches = NumpyCaches(config, groups, self.chunk)
        # Never filled: layouts for what is asked without a sequence at hand.
        self._any_cache = self._caches.new(config.max_context)
        self._kv_peak = 0
        store.check(build(config, 1, "last"))

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Dequantise every weight to float32; `progress` hears (weights done, weights in all)."""
        self._weights.load(part_on(self.plan(1, "last"), "cpu"), self._cores, progress)

    def set_adapters(self, adapters: AdapterSet) -> None:
        self.adapters = adapters
        self._plans.clear()
        self._segments.clear()
        self._steps.clear()
        self._adapter_weights.clear()

    def new_cache(self, context: int, groups: Sequence[LayerGroup] | None = None) -> NumpyCache:
        return self._caches.new(context, groups)

    def plan(self, rows: int, logits: Logits, sampled: bool = False) -> Plan:
        """The placed plan for one row or many (up to `chunk`), made once; also what WebGPU runs of it."""
        key = (rows == 1, logits, sampled)
        if key not in self._plans:
            ranks = self.adapters.ranks
            plan = build(self.config, 1 if rows == 1 else self.chunk, logits, sampled, lora_ranks=ranks)
            if self._fused:
                plan = fuse(plan, self._store.formats | self.adapters.formats)
            self._plans[key] = place(plan, self._placement)
        return self._plans[key]

    def segments(self, rows: int, logits: Logits) -> list[Segment]:
        """A step of `rows` as the devices take turns in it."""
        key = (rows == 1, logits)
        if key not in self._segments:
            self._segments[key] = segments(self.plan(rows, logits))
        return self._segments[key]

    def forward(
        self, cache: NumpyCache, ids: Sequence[int], logits: Logits, observe: Observer | None = None
    ) -> np.ndarray | None:
        """Append up to `chunk` tokens; returns float32 logits (V,) for "last", (T, V) for "all", None for "none"."""
        return self._step([(cache, ids)], logits, observe)

    def forward_many(self, caches: Sequence[NumpyCache], ids: Sequence[int]) -> np.ndarray:
        self.check_batch(caches)
        logits = self._step([(cache, [token]) for cache, token in zip(caches, ids, strict=True)], "all")
        assert logits is not None
        return logits

    def run_segment(
        self, index: int, appended: Appended, logits: Logits, values: Values, observe: Observer | None = None
    ) -> None:
        """See RunSegment."""
        rows = Rows.of(appended, self._rope)
        steps = self._segment_steps(len(rows.tokens), logits, index)
        with self._blas_threads(len(rows.tokens)):
            for step in steps:
                output = values[step.op.output.name] = self._run(step, values, rows)
                for name in step.done:
                    del values[name]
                if observe is not None:
                    observe(step.op, output)
        self._kv_peak = max(self._kv_peak, self._kv_bytes())

    def time_step(self, cache: NumpyCache, ids: Sequence[int]) -> StepTimes:
        before = cache.length
        marks = [time.perf_counter()]
        logits = self.forward(cache, ids, "last", lambda op, output: marks.append(time.perf_counter()))
        assert logits is not None
        sample(logits, Sampling(), 0, before, None)
        marks.append(time.perf_counter())
        cache.truncate(before)
        return StepTimes(tuple(end - start for start, end in pairwise(marks)), marks[-1] - marks[0])

    def stream(self, cache: NumpyCache, ids: Sequence[int], request: SampleRequest) -> Generator[Sampled, None, None]:
        return host_stream(self, cache, ids, request)

    def check_batch(self, caches: Sequence[NumpyCache]) -> None:
        check_batch(caches, self.max_batch)

    def stream_many(
        self,
        caches: Sequence[NumpyCache],
        ids: Sequence[int],
        requests: Sequence[SampleRequest],
        going_on: Callable[[], bool],
    ) -> Generator[tuple[Sampled, ...], None, None]:
        return host_stream_many(self, caches, ids, requests, going_on)

    def plan_rows(self, phase: Literal["decode", "prefill"]) -> list[PlanRow]:
        plan = self.plan(1 if phase == "decode" else self.chunk, "last", sampled=True)
        return explain(plan, self.decisions(plan), {"cpu": self.formats()})

    def decisions(self, plan: Plan) -> list[tuple[Decision, int]]:
        """How each operation of a placed plan that is the CPU's runs; NumPy has no dispatches, each counts as one."""
        groups = [store.group for store in self._any_cache.stores]
        layouts: dict[int | None, str] = {layer: group.layout for group in groups for layer in group.layers}
        ops = part_on(plan, "cpu").ops
        return [(explain_kernel(op, self._product, layouts.get(op.layer, "")), 1) for op in ops]

    def formats(self) -> dict[str, str]:
        """The format that each weight has on the CPU, by canonical name."""
        return dict.fromkeys(self._store.formats | self.adapters.formats, "f32")

    def memory(self) -> MemoryStats:
        by_format = {"f32": self._weights.nbytes}
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
        self._steps.clear()
        self._threads.close()
        self._caches.close()

    def _step(self, appended: Appended, logits: Logits, observe: Observer | None = None) -> np.ndarray | None:
        """See run_step."""
        run = partial(self.run_segment, observe=observe)
        return run_step(self.segments(count_rows(appended), logits), {"cpu": run}, appended, logits)

    def _blas_threads(self, rows: int) -> AbstractContextManager[object]:
        """Limits BLAS for a step of `rows`: to one thread, but for many rows of the reference."""
        one = rows == 1 or self._product.variant != "reference"
        limit: AbstractContextManager[object] = self._blas.limit(limits=1 if one else None)
        return limit

    def _segment_steps(self, rows: int, logits: Logits, segment: int) -> tuple[Step, ...]:
        """A segment of the plan for so many rows with its weights, made once."""
        key = (rows == 1, logits, segment)
        if key not in self._steps:
            found = self.segments(rows, logits)[segment]
            self._weights.load(found.plan)
            self._steps[key] = make_steps(found.plan, self._weight, found.kept)
        return self._steps[key]

    def _append(self, op: Op, rows: Rows, k: np.ndarray, v: np.ndarray) -> None:
        shape = (-1, self.config.num_kv_heads, self.config.head_dim)
        # (T, K * E) -> (K, T, E)
        keys, values = (array.reshape(shape).transpose(1, 0, 2) for array in (k, v))
        layer = _layer(op)
        for part in rows.parts:
            part.cache.store(layer).append(layer, part.cache.length, keys[:, part.rows], values[:, part.rows])

    def _attend(self, op: Op, attention: Attention, part: Part, q: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
        """Attention of the rows q (T, H * E) of one cache, which has appended their keys; (T, H * E)."""
        length, layer = part.cache.length, _layer(op)
        first = 0 if attention.window is None else max(0, length - attention.window + 1)
        k, v = part.cache.store(layer).view(layer, first, length + len(q))  # (K, S, E)

        def attend(some: slice) -> np.ndarray:
            start, end = length + some.start, length + some.stop
            begin = first if attention.window is None else max(first, start - attention.window + 1)
            keys = slice(begin - first, end - first)
            return cpu.attention(q[some], k[:, keys], v[:, keys], start, attention, begin, sinks)

        return self._threads.by_rows(len(q), op.output.columns, attend)

    def _kv_bytes(self) -> int:
        return self._caches.nbytes

    def _weight(self, ref: WeightRef) -> np.ndarray:
        """(rows, columns) float32."""
        if ref.sources[0] not in self.adapters.formats:
            return self._weights[ref]
        if ref not in self._adapter_weights:
            self._adapter_weights[ref] = self.adapters.load(ref).dequantize()
        return self._adapter_weights[ref]

    def _run(self, step: Step, values: dict[str, np.ndarray], rows: Rows) -> np.ndarray:
        op, weights = step.op, step.weights
        inputs = [_read(values, tensor) for tensor in op.inputs]
        match op.attributes:
            case Embed(scale):
                return weights[0][rows.tokens] * np.float32(scale)
            case Rope(rope, head_dim):
                return cpu.rotate(inputs[0], rows.rope(rope), head_dim, rope.interleaved)
            case KvAppend(rope=None):
                self._append(op, rows, inputs[0], inputs[1])
                return inputs[0]
            case KvAppend(head_dim=head_dim, rope=rope, qk_norm_eps=eps):
                q, k, v = inputs
                if eps is not None:
                    q, k = cpu.rmsnorm(q, weights[0][0], eps), cpu.rmsnorm(k, weights[1][0], eps)
                assert rope is not None
                table = rows.rope(rope)
                self._append(op, rows, cpu.rotate(k, table, head_dim, rope.interleaved), v)
                return cpu.rotate(q, table, head_dim, rope.interleaved)
            case Attention() as attention:
                sinks = weights[0][:, 0] if attention.sinks else None
                return rows.by_part(lambda part: self._attend(op, attention, part, inputs[0][part.rows], sinks))
            case LastRow():
                return inputs[0][-1:]
            case Sample():
                raise AssertionError("sampling reads the logits of forward()")
            case _:

                def compute(part: slice) -> np.ndarray:
                    product = self._threads.product if part == slice(0, len(inputs[0])) else multiply
                    return rowwise.compute(op, [x[part] for x in inputs], weights, product)

                return self._threads.by_rows(len(inputs[0]), op.output.columns, compute)


def _read(values: dict[str, np.ndarray], tensor: TensorRef) -> np.ndarray:
    if tensor.parent is None:
        return values[tensor.name]
    return values[tensor.parent.name][:, tensor.first_column : tensor.first_column + tensor.columns]


def _layer(op: Op) -> int:
    assert op.layer is not None
    return op.layer
