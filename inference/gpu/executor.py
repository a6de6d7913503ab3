"""The WebGPU executor: runs prebuilt programs of the plan, samples on the GPU, feeds tokens back there."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Literal

import numpy as np

from inference.errors import DeviceUnavailable
from inference.events import MemoryStats
from inference.executor import SampleRequest, StepCost, StepTimes, host_stream, host_stream_many
from inference.gpu.batch import BatchSteps
from inference.gpu.buffers import BufferPool
from inference.gpu.device import RAISED_LIMITS, AdapterReport, DeviceCaps, describe_caps, open_device
from inference.gpu.encoder import PassEncoder
from inference.gpu.polling import ask_instead_of_waiting
from inference.gpu.probes import probe_subgroups
from inference.gpu.programs import MAX_BATCH, ROW_BUCKETS, GpuCache, Programs, step_rows
from inference.gpu.queue import InFlight, StepQueue, run_once
from inference.gpu.timing import time_passes
from inference.gpu.transfer import read_tensor, write_tensor
from inference.host_memory import peak_resident_bytes
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import Binding
from inference.kernels.registry import check_names
from inference.kernels.sample import RESULT_WORDS, pack_settings, unpack_results
from inference.kv.factory import GpuCaches
from inference.kv.gpu_store import GpuMemory
from inference.kv.layout import LayerGroup
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig
from inference.plan.build import build
from inference.plan.explain import PlanRow, explain
from inference.plan.ops import Device, DType, Logits, Plan
from inference.plan.place import Placement, Segment, copied_name, whole
from inference.sampling import Sampled, Sampling
from inference.segments import Appended, Values, count_rows, run_step, timed
from inference.weights import WeightStore

# Enough that the GPU never waits for Python. On a software adapter a step takes a second and what is computed past a
# stop is lost, so only one.
IN_FLIGHT = InFlight(groups=5, steps=3)
SOFTWARE_IN_FLIGHT = InFlight(groups=1, steps=1)

LOGITS_BYTES = 64 * 1024 * 1024
"""Most memory for the logits of one step, where those of all rows are wanted."""


def steps_in_flight(caps: DeviceCaps) -> InFlight:
    """How far ahead of its results a device may be."""
    return SOFTWARE_IN_FLIGHT if caps.software else IN_FLIGHT


class WebGpuExecutor:
    """One model on one WebGPU device. `kv_dtype` is that of the cache, `dtype` that of all other activations.

    With a `placement` that gives the CPU a part too, it is WebGPU's half of a SplitExecutor, which asks it to run
    segment after segment; `groups` then holds the layers whose caches are on WebGPU.
    """

    device: Device = "webgpu"

    def __init__(
        self,
        config: ModelConfig,
        store: WeightStore,
        adapter: Any,
        report: AdapterReport,
        groups: Sequence[LayerGroup],
        dtype: DType = "f32",
        kv_dtype: DType = "f32",
        preferences: Sequence[KernelPreference] = (),
        memory_limit: int | None = None,
        raw_encoding: bool = True,
        placement: Placement | None = None,
    ) -> None:
        check_names(preferences)
        self.config = config
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.adapter = f"{report.name} ({report.backend})"
        self._gpu = open_device(adapter)
        self.caps = describe_caps(adapter, self._gpu, *probe_subgroups(self._gpu))
        if not self.caps.software:
            # On a software adapter steps are not in flight together, and asking would take time from computing.
            ask_instead_of_waiting(self._gpu)
        self.chunk = step_rows(config, self.caps)
        row_bytes = config.vocab_size * 4
        self.logits_chunk = next(
            rows for rows in reversed(ROW_BUCKETS) if rows <= self.chunk and rows * row_bytes <= LOGITS_BYTES
        )
        if "f16" in (dtype, kv_dtype) and not self.caps.f16:
            raise DeviceUnavailable(f"{report.name} has no 16-bit floats (shader-f16); use --dtype f32")
        store.check(build(config, 1, "last"))
        self._pool = BufferPool(self._gpu, self.caps.max_buffer, memory_limit)
        self._encoder = PassEncoder(raw_encoding)
        in_flight = steps_in_flight(self.caps)
        memory = GpuMemory(self._gpu, self._pool, kv_dtype, self.chunk, in_flight.depth, self.caps.max_binding)
        self._caches = GpuCaches(config, groups, memory)
        any_cache = self._caches.new(config.max_context)
        self.programs = Programs(
            config,
            store,
            placement or whole("webgpu", config.num_layers),
            self._gpu,
            self.caps,
            self._pool,
            self._encoder,
            any_cache,
            dtype,
            kv_dtype,
            preferences,
        )
        self._shared = self.programs.shared
        self._queue = StepQueue(self._gpu, self._pool, self._encoder, self._shared[Binding("result")], in_flight)
        self.max_batch = min(MAX_BATCH, self.logits_chunk)
        self._batches = BatchSteps(self._gpu, self._pool, self._encoder, self.programs, self._queue, self.max_batch)
        self._limits = {name: self._gpu.limits[name] for name in RAISED_LIMITS}

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Upload the weights; `progress` hears (weights done, weights in all). Raises DoesNotFit."""
        self.programs.load(progress)

    @property
    def adapters(self) -> AdapterSet:
        return self.programs.adapters

    def set_adapters(self, adapters: AdapterSet) -> None:
        self.programs.set_adapters(adapters)

    def new_cache(self, context: int, groups: Sequence[LayerGroup] | None = None) -> GpuCache:
        return self._caches.new(context, groups)

    def plan(self, rows: int, logits: Logits, sampled: bool = False) -> Plan:
        """The fused plan for a bucket of rows, made once."""
        return self.programs.plan(rows, logits, sampled)

    def forward(self, cache: GpuCache, ids: Sequence[int], logits: Logits) -> np.ndarray | None:
        self.begin_step(cache.length, ids)
        return run_step(self.segments(len(ids), logits), {"webgpu": self.run_segment}, [(cache, ids)], logits)

    def segments(self, rows: int, logits: Logits) -> list[Segment]:
        """A step of `rows` as the devices take turns in it."""
        return self.programs.segments(rows, logits)

    def run_segment(
        self, index: int, appended: Appended, logits: Logits, values: Values, times: dict[str, float] | None = None
    ) -> None:
        """See RunSegment; `begin_step` comes before the first one. `times` hears the seconds of each operation.

        There may be several caches where no attention runs here: then no operation looks at them.
        """
        (cache, _), rows = appended[0], count_rows(appended)
        assert len(appended) == 1 or "webgpu" not in self.programs.placement.attention
        segment, buffers = self.segments(rows, logits)[index], self.programs.scratch(rows, logits)
        program, prepared = self.programs.program(cache, rows, logits, segment=index)
        for op in segment.copies("webgpu"):
            with timed(op.output.name, times):
                write_tensor(self._gpu, buffers, op.output, values[op.inputs[0].name])
        if times is None:
            run_once(self._gpu, self._encoder, prepared)
        else:
            groups = {op.output.name: group for op, group in zip(program.plan.ops, program.by_op, strict=True) if group}
            passes = [self._encoder.prepare(group) for group in groups.values()]
            times |= zip(groups, time_passes(self._gpu, self._encoder, passes), strict=True)
        for op in segment.copies("cpu"):
            with timed(op.output.name, times):
                values[op.output.name] = read_tensor(self._gpu, buffers, op.inputs[0], rows)
        if segment.last and logits == "none":
            # Waiting here keeps the progress that is reported true, and a cancelled prefill short.
            self._pool.flush()
        elif segment.last:
            result = segment.plan.ops[-1].output
            with timed(copied_name(result, "cpu"), times):
                values[result.name] = read_tensor(self._gpu, buffers, result, rows)

    def stream(self, cache: GpuCache, ids: Sequence[int], request: SampleRequest) -> Generator[Sampled, None, None]:
        if request.sampling.host_reason is not None:
            yield from host_stream(self, cache, ids, request)
            return
        began = time.perf_counter()
        self._write_request(request)
        self._make_room(cache, ids)
        self.begin_step(cache.length, ids)
        self._queue.begin_stream()
        self._submit(cache, len(ids))
        next_position = cache.length
        steps = self._queue.results(began, lambda: cache.length < cache.context, lambda: self._submit_next(cache))
        with closing(steps):
            for words, spans in steps:
                (sampled,) = unpack_results(words[None, :RESULT_WORDS], spans)
                cache.note(next_position, [sampled.id])
                next_position += 1
                yield sampled

    def check_batch(self, caches: Sequence[GpuCache]) -> None:
        self._batches.check(caches)

    def forward_many(self, caches: Sequence[GpuCache], ids: Sequence[int]) -> np.ndarray:
        return self._batches.forward(caches, ids)

    def stream_many(
        self,
        caches: Sequence[GpuCache],
        ids: Sequence[int],
        requests: Sequence[SampleRequest],
        going_on: Callable[[], bool],
    ) -> Generator[tuple[Sampled, ...], None, None]:
        if any(request.sampling.host_reason is not None for request in requests):
            return host_stream_many(self, caches, ids, requests, going_on)
        return self._batches.stream(caches, ids, requests, going_on)

    def time_step(self, cache: GpuCache, ids: Sequence[int]) -> StepTimes:
        self.require_clock()
        self._write_request(SampleRequest(Sampling(), 0, ()))
        before, took = cache.length, []
        for split in (False, True):
            self._make_room(cache, ids)
            self.begin_step(before, ids)
            program, prepared = self.programs.program(cache, len(ids), "last", sampled=True)
            cache.begin()
            passes = [self._encoder.prepare(group) for group in program.by_op] if split else [prepared]
            took.append(time_passes(self._gpu, self._encoder, passes))
            cache.length += len(ids)
            cache.truncate(before)
        return StepTimes(tuple(took[1]), took[0][0])

    def require_clock(self) -> None:
        """Raises DeviceUnavailable where the device does not tell what its operations take."""
        if not self.caps.timestamps:
            raise DeviceUnavailable(f"{self.adapter} has no timestamps (timestamp-query): kernels cannot be timed")

    def plan_rows(self, phase: Literal["decode", "prefill"]) -> list[PlanRow]:
        plan = self.plan(1 if phase == "decode" else self.chunk, "last", sampled=True)
        return explain(plan, self.programs.decisions(plan), {"webgpu": self.programs.formats(plan)})

    def memory(self) -> MemoryStats:
        held, adapters = self._pool.bytes, self.programs.adapter_weights.nbytes
        return MemoryStats(
            device=self.adapter,
            weights_by_format=self.programs.weights.bytes_by_format | ({"adapters f32": adapters} if adapters else {}),
            weights_bytes=held["weights"],
            kv_bytes=held["kv"],
            scratch_bytes=held["scratch"],
            staging_bytes=held["staging"],
            peak_bytes=self._pool.peak,
            host_peak_bytes=peak_resident_bytes(),
            limits=self._limits,
        )

    def step_cost(self) -> StepCost:
        steps = max(1, self._queue.steps)
        return StepCost(
            dispatches=self._queue.dispatches,
            encode_us=self._queue.encode_s / steps * 1e6,
            finish_us=self._queue.finish_s / steps * 1e6,
            submit_us=self._queue.submit_s / steps * 1e6,
            wait_us=self._queue.wait_s / steps * 1e6,
        )

    def close(self) -> None:
        self._queue.close()
        self._pool.destroy_all()
        self._gpu.destroy()

    @staticmethod
    def _make_room(cache: GpuCache, ids: Sequence[int]) -> None:
        cache.note(cache.length, ids)
        cache.ensure(cache.length + len(ids))

    def _submit_next(self, cache: GpuCache) -> None:
        """A step of the token that the one before samples."""
        if cache.missing(cache.length + 1):
            # Growing may copy, so the steps before it must be with the device.
            self._queue.wait_submitted()
            cache.ensure(cache.length + 1)
        self._submit(cache, 1)

    def _submit(self, cache: GpuCache, rows: int) -> None:
        """A step of `rows` tokens that the device has, or is about to have, and the sampling of the next one."""
        _, prepared = self.programs.program(cache, rows, "last", sampled=True)
        cache.begin()
        self._queue.submit(prepared, measured=rows == 1)
        cache.length += rows

    def begin_step(self, position: int, ids: Sequence[int]) -> None:
        """Set the step's position, rows and tokens; with nothing in flight, since a step's end sets the next one's."""
        write = self._gpu.queue.write_buffer
        write(self._shared[Binding("state")], 0, np.array([position, len(ids)], np.uint32))
        write(self._shared[Binding("tokens")], 0, np.asarray(ids, np.uint32))

    def _write_request(self, request: SampleRequest) -> None:
        self._gpu.queue.write_buffer(
            self._shared[Binding("sampling")], 0, pack_settings(request.sampling, request.seed)
        )
        if (counts := request.token_counts(self.config.vocab_size)) is not None:
            self._gpu.queue.write_buffer(self._shared[Binding("counts")], 0, counts.astype(np.uint32))
