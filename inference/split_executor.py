"""One model on both devices: its placed plan, run as segments that WebGPU and NumPy take turns in."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from inference.cpu.executor import NumpyExecutor
from inference.events import MemoryStats
from inference.executor import SampleRequest, StepCost, StepTimes, check_batch, host_stream, host_stream_many
from inference.gpu.executor import WebGpuExecutor
from inference.kv.layout import KvCache, LayerGroup
from inference.lora.adapter_set import AdapterSet
from inference.placement import groups_on
from inference.plan.explain import PlanRow, explain
from inference.plan.ops import Device, Logits, Op
from inference.plan.place import Placement, part_on
from inference.sampler import sample
from inference.sampling import Sampled, Sampling
from inference.segments import Appended, RunSegment, Values, count_rows, run_step


class SplitExecutor:
    """Both halves have the same model and the same placement, each with the weights and the caches of its part.

    Tokens are sampled on the CPU: what one device computes must be with the other before that goes on, so that there
    are never several steps in flight.
    """

    device: Device = "webgpu"

    def __init__(self, cpu: NumpyExecutor, gpu: WebGpuExecutor, placement: Placement) -> None:
        self.config = cpu.config
        self.adapter = f"{gpu.adapter} and {cpu.adapter}"
        self.chunk = min(cpu.chunk, gpu.chunk)
        self.logits_chunk = min(cpu.logits_chunk, gpu.logits_chunk)
        self.max_batch = self.logits_chunk
        self.placement = placement
        self.cpu = cpu
        self.gpu = gpu
        self._run: Mapping[Device, RunSegment] = {"webgpu": gpu.run_segment, "cpu": cpu.run_segment}

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Each half its own weights; `progress` hears (weights done, weights in all). Raises DoesNotFit."""
        plan = self.gpu.plan(1, "last")
        on_gpu, on_cpu = (sum(len(op.weights) for op in part_on(plan, device).ops) for device in ("webgpu", "cpu"))
        hear = progress or (lambda done, total: None)
        self.gpu.load(lambda done, total: hear(done, on_gpu + on_cpu))
        # The CPU counts tied weights once.
        self.cpu.load(lambda done, total: hear(on_gpu + done * on_cpu // total, on_gpu + on_cpu))

    @property
    def adapters(self) -> AdapterSet:
        return self.gpu.adapters

    def set_adapters(self, adapters: AdapterSet) -> None:
        """See Executor. WebGPU comes first: only there may be no room."""
        self.gpu.set_adapters(adapters)
        self.cpu.set_adapters(adapters)

    def new_cache(self, context: int, groups: Sequence[LayerGroup] | None = None) -> KvCache[Any]:
        """An empty cache whose stores lie where the attention of their layers runs."""
        gpu, cpu = (
            half.new_cache(context, None if groups is None else groups_on(groups, self.placement, half.device))
            for half in (self.gpu, self.cpu)
        )
        stores = sorted((*gpu.stores, *cpu.stores), key=lambda store: store.group.layers)
        return KvCache(stores, context)

    def forward(self, cache: KvCache[Any], ids: Sequence[int], logits: Logits) -> np.ndarray | None:
        return self._step([(cache, ids)], logits, self._run)

    def stream(self, cache: KvCache[Any], ids: Sequence[int], request: SampleRequest) -> Generator[Sampled, None, None]:
        return host_stream(self, cache, ids, request)

    def check_batch(self, caches: Sequence[KvCache[Any]]) -> None:
        check_batch(caches, self.max_batch)

    def forward_many(self, caches: Sequence[KvCache[Any]], ids: Sequence[int]) -> np.ndarray:
        """See Executor. Sequences take turns, unless all attention is on the CPU: WebGPU then looks at no cache."""
        self.check_batch(caches)
        appended = [(cache, [token]) for cache, token in zip(caches, ids, strict=True)]
        if "webgpu" in self.placement.attention:
            rows = [self.forward(cache, token, "last") for cache, token in appended]
            return np.stack([row for row in rows if row is not None])
        logits = self._step(appended, "all", self._run)
        assert logits is not None
        return logits

    def stream_many(
        self,
        caches: Sequence[KvCache[Any]],
        ids: Sequence[int],
        requests: Sequence[SampleRequest],
        going_on: Callable[[], bool],
    ) -> Generator[tuple[Sampled, ...], None, None]:
        return host_stream_many(self, caches, ids, requests, going_on)

    def time_step(self, cache: KvCache[Any], ids: Sequence[int]) -> StepTimes:
        """WebGPU's operations are timed by its own clock, those of the CPU and what is copied by the host's."""
        self.gpu.require_clock()
        before, times = cache.length, dict[str, float]()
        run: Mapping[Device, RunSegment] = {
            "webgpu": partial(self.gpu.run_segment, times=times),
            "cpu": partial(_run_timed, self.cpu, times),
        }
        self._step([(cache, ids)], "last", run)
        cache.truncate(before)
        began = time.perf_counter()
        logits = self.forward(cache, ids, "last")
        assert logits is not None
        computed = time.perf_counter()
        sample(logits, Sampling(), 0, before, None)
        ended = time.perf_counter()
        cache.truncate(before)
        ops = self.gpu.plan(1 if len(ids) == 1 else self.chunk, "last", sampled=True).ops
        return StepTimes(tuple(times.get(op.output.name, ended - computed) for op in ops), ended - began)

    def plan_rows(self, phase: Literal["decode", "prefill"]) -> list[PlanRow]:
        plan = self.gpu.plan(1 if phase == "decode" else self.chunk, "last", sampled=True)
        halves = {"webgpu": iter(self.gpu.programs.decisions(plan)), "cpu": iter(self.cpu.decisions(plan))}
        decisions = [next(halves[op.device or "cpu"]) for op in plan.ops]
        return explain(plan, decisions, {"webgpu": self.gpu.programs.formats(plan), "cpu": self.cpu.formats()})

    def memory(self) -> MemoryStats:
        gpu, cpu = self.gpu.memory(), self.cpu.memory()
        on_gpu = {f"{name} on webgpu": size for name, size in gpu.weights_by_format.items()}
        on_cpu = {f"{name} on cpu": size for name, size in cpu.weights_by_format.items()}
        return replace(
            gpu,
            weights_by_format=on_gpu | on_cpu,
            weights_bytes=gpu.weights_bytes + cpu.weights_bytes,
            kv_bytes=gpu.kv_bytes + cpu.kv_bytes,
            peak_bytes=gpu.peak_bytes + cpu.peak_bytes,
            bytes_by_device={
                "webgpu": gpu.weights_bytes + gpu.kv_bytes + gpu.scratch_bytes + gpu.staging_bytes,
                "cpu": cpu.weights_bytes + cpu.kv_bytes,
            },
        )

    def step_cost(self) -> StepCost:
        return StepCost()

    def close(self) -> None:
        self.gpu.close()
        self.cpu.close()

    def _step(self, appended: Appended, logits: Logits, run: Mapping[Device, RunSegment]) -> np.ndarray | None:
        self.gpu.begin_step(appended[0][0].length, [token for _, ids in appended for token in ids])
        return run_step(self.gpu.segments(count_rows(appended), logits), run, appended, logits)


def _run_timed(
    cpu: NumpyExecutor, times: dict[str, float], index: int, appended: Appended, logits: Logits, values: Values
) -> None:
    """A segment on the CPU, with the seconds of each operation."""
    mark = time.perf_counter()

    def observe(op: Op, _: np.ndarray) -> None:
        nonlocal mark
        now = time.perf_counter()
        times[op.output.name], mark = now - mark, now

    cpu.run_segment(index, appended, logits, values, observe)
