"""Plans of one model on one device, made into programs bound to its buffers; and what all of those share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.errors import DoesNotFit
from inference.gpu.adapter_weights import AdapterWeights
from inference.gpu.batch_tables import BatchTables
from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps
from inference.gpu.encoder import PassEncoder, Prepared
from inference.gpu.pipelines import PipelineCache
from inference.gpu.program import Program, decide, make_program, make_scratch
from inference.gpu.weights import DeviceWeights, device_formats
from inference.kernels.base import Decision, KernelPreference
from inference.kernels.dispatch import Binding, KernelContext
from inference.kernels.sample import RESULT_WORDS, SETTINGS_WORDS
from inference.kv.gpu_store import GpuStore
from inference.kv.layout import KvCache
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig, RopeConfig
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import DType, Logits, Plan
from inference.plan.place import Placement, Segment, part_on, place, segments
from inference.rope import rope_table
from inference.weights import WeightStore

ROW_BUCKETS = (1, 8, 32, 64, 256, 512)
"""A step runs the program of the smallest bucket that holds its rows; rows beyond them leave early."""

SOFTWARE_ROWS, WINDOW_ROWS = 64, 256
"""Most rows of a step on a software adapter, and of models whose layers have a window."""

KV_BUCKETS = (512, 1024, 4096, 16384, 65536, 2**31)
"""Decode programs are made for the smallest bucket that holds kv_len: what splits the KV range depends on it."""

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""As ROW_BUCKETS, of steps whose rows belong to a sequence each."""

MAX_BATCH = BATCH_BUCKETS[-1]

PlanKey = tuple[int, Logits, bool]
GpuCache = KvCache[GpuStore]


def step_rows(config: ModelConfig, caps: DeviceCaps) -> int:
    """Most tokens of one step: large matrices want many, but a ring holds as many beside its window.

    A software adapter takes most of a second for 64: smaller steps are cancelled sooner.
    """
    if caps.software:
        return SOFTWARE_ROWS
    return WINDOW_ROWS if any(layer.window for layer in config.layers) else ROW_BUCKETS[-1]


def bucket_for(count: int, buckets: Sequence[int]) -> int:
    """The smallest of `buckets` that holds so many."""
    return next(bucket for bucket in buckets if count <= bucket)


def shared_sizes(config: ModelConfig, chunk: int) -> dict[Binding, int]:
    """Bytes of the buffers that all programs share, for steps of up to `chunk` tokens."""
    return {
        Binding("state"): (2 + MAX_BATCH) * 4,
        Binding("tokens"): chunk * 4,
        Binding("sampling"): MAX_BATCH * SETTINGS_WORDS * 4,
        Binding("counts"): config.vocab_size * 4,
        Binding("result"): MAX_BATCH * RESULT_WORDS * 4,
    }


class Programs:
    """The plans of one model, and the weights and programs of what WebGPU has of it by `placement`.

    `shared` are the buffers that all programs share.
    `any_cache` is never filled: it has the layouts for what is asked without a sequence at hand.
    """

    def __init__(
        self,
        config: ModelConfig,
        store: WeightStore,
        placement: Placement,
        device: Any,
        caps: DeviceCaps,
        pool: BufferPool,
        encoder: PassEncoder,
        any_cache: GpuCache,
        dtype: DType,
        kv_dtype: DType,
        preferences: Sequence[KernelPreference],
    ) -> None:
        self.config = config
        self.placement = placement
        self.adapters = AdapterSet(config)
        self.weights = DeviceWeights(store, pool, caps.max_binding)
        self.adapter_weights = AdapterWeights(pool, caps.max_binding)
        sizes = shared_sizes(config, step_rows(config, caps))
        self.shared = {binding: pool.create("scratch", size, binding.space) for binding, size in sizes.items()}
        self._store = store
        self._device = device
        self._caps = caps
        self._pool = pool
        self._encoder = encoder
        self._any_cache = any_cache
        self._dtype: DType = dtype
        self._kv_dtype: DType = kv_dtype
        self._preferences = tuple(preferences)
        self._pipelines = PipelineCache(device)
        self._plans: dict[PlanKey, Plan] = {}
        self._segments: dict[PlanKey, list[Segment]] = {}
        self._cached_layers = [layer for layer, where in enumerate(placement.attention) if where == "webgpu"]
        self._plan_version = 0
        # By whether each row belongs to a sequence of its own.
        self._scratch: dict[tuple[PlanKey, bool], dict[Binding, Any]] = {}
        self._rope: dict[RopeConfig, tuple[int, Any]] = {}

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Upload the weights; `progress` hears (weights done, weights in all). Raises DoesNotFit."""
        self.weights.upload(part_on(self.plan(1, "last"), "webgpu"), progress)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """See Executor. Where only strengths differ, matrices are written anew and every program stays."""
        before, plans, same_plan = self.adapters, self._plans, adapters.ranks == self.adapters.ranks
        self.adapters = adapters
        if not same_plan:
            self._plans = {}
        try:
            self.adapter_weights.upload(adapters, part_on(self.plan(1, "last"), "webgpu"))
        except DoesNotFit:
            self.adapters, self._plans = before, plans
            raise
        if not same_plan:
            self._plan_version += 1
            self._segments = {}
            self._free_scratch()

    def plan(self, rows: int, logits: Logits, sampled: bool = False) -> Plan:
        """The fused and placed plan for a bucket of rows, made once; also what the CPU runs of it."""
        key = (rows, logits, sampled)
        if key not in self._plans:
            plan = build(self.config, rows, logits, sampled, self._dtype, self._kv_dtype, self.adapters.ranks)
            self._plans[key] = place(fuse(plan, self._store.formats | self.adapters.formats), self.placement)
        return self._plans[key]

    def segments(self, rows: int, logits: Logits, sampled: bool = False) -> list[Segment]:
        """The plan for a step of `rows` as the devices take turns in it."""
        key = (bucket_for(rows, ROW_BUCKETS), logits, sampled)
        if key not in self._segments:
            self._segments[key] = segments(self.plan(*key))
        return self._segments[key]

    def decisions(self, plan: Plan) -> list[tuple[Decision, int]]:
        """The kernel, and the number of dispatches, of each operation of `plan` that is WebGPU's."""
        chosen = decide(part_on(plan, "webgpu"), self._context(plan, KV_BUCKETS[1], self._any_cache))
        return [(decision, len(dispatches)) for decision, dispatches in zip(*chosen, strict=True)]

    def formats(self, plan: Plan) -> dict[str, str]:
        """The format that each weight of `plan` has on WebGPU, by canonical name."""
        return device_formats(self._store.formats | self.adapters.formats, plan)

    def program(
        self, cache: GpuCache, rows: int, logits: Logits, sampled: bool = False, segment: int = 0
    ) -> tuple[Program, Prepared]:
        """The program for a step of `rows` that begins at the cache's length, bound to the cache's buffers.

        Of a plan that both devices run it is that of one segment.
        """
        kv_bucket = bucket_for(cache.length + rows, KV_BUCKETS)
        stores = dict.fromkeys(cache.store(layer) for layer in self._cached_layers)
        versions = (self._plan_version, *(store.version for store in stores))
        key = (bucket_for(rows, ROW_BUCKETS), kv_bucket, logits, sampled, segment)
        if key not in cache.programs or cache.programs[key][0] != versions:
            plan = self.segments(rows, logits, sampled)[segment].plan
            buffers = dict(self.scratch(rows, logits, sampled))
            for store in stores:
                buffers |= store.buffers()
            context = self._context(plan, kv_bucket, cache)
            cache.programs[key] = (versions, *self._bound(plan, context, cache.context, buffers))
        return cache.programs[key][1:]

    def batch_program(self, tables: BatchTables, rows: int, longest: int, sampled: bool) -> tuple[Program, Prepared]:
        """The program for a step of a token each of `rows` sequences that hold up to `longest` tokens."""
        bucket, kv_bucket = bucket_for(rows, BATCH_BUCKETS), bucket_for(longest + 1, KV_BUCKETS)
        key, versions = (bucket, kv_bucket, sampled), (self._plan_version, tables.version)
        if key not in tables.programs or tables.programs[key][0] != versions:
            plan = self.plan(bucket, "all", sampled)
            context = replace(self._context(plan, kv_bucket, self._any_cache), layouts=tables.layouts, batch=True)
            buffers = self.batch_scratch(rows, sampled) | tables.buffers()
            tables.programs[key] = (versions, *self._bound(plan, context, tables.context, buffers))
        return tables.programs[key][1:]

    def batch_scratch(self, rows: int, sampled: bool) -> dict[Binding, Any]:
        """The buffers of the activations in a step of a token each of `rows` sequences; sampled, also their counts."""
        return self._activations((bucket_for(rows, BATCH_BUCKETS), "all", sampled), batch=True)

    def scratch(self, rows: int, logits: Logits, sampled: bool = False) -> dict[Binding, Any]:
        """The buffers of the activations in a step of `rows`."""
        return self._activations((bucket_for(rows, ROW_BUCKETS), logits, sampled), batch=False)

    def _activations(self, key: PlanKey, batch: bool) -> dict[Binding, Any]:
        if (key, batch) not in self._scratch:
            plan = part_on(self.plan(*key), "webgpu")
            context = replace(self._context(plan, KV_BUCKETS[-1], self._any_cache), batch=batch)
            buffers = make_scratch(plan, context, self._pool)
            if batch and plan.ops[-1].kind == "sample":
                size = plan.rows * self.config.vocab_size * 4
                buffers[Binding("counts")] = self._pool.create("scratch", size, "token counts")
            self._scratch[key, batch] = buffers
        return self._scratch[key, batch]

    def _bound(
        self, plan: Plan, context: KernelContext, positions: int, buffers: Mapping[Binding, Any]
    ) -> tuple[Program, Prepared]:
        """The program of `plan` with the model's buffers and `buffers`."""
        held = self.weights.buffers | self.adapter_weights.buffers | self.shared | self._rope_tables(positions)
        program = make_program(plan, context, held | dict(buffers), self._device, self._pipelines)
        return program, self._encoder.prepare(program.dispatches)

    def _context(self, plan: Plan, kv_bucket: int, cache: GpuCache) -> KernelContext:
        layouts = {layer: cache.store(layer).layout(layer) for layer in self._cached_layers}
        placed, preferences = self.weights.placed | self.adapter_weights.placed, self._preferences
        return KernelContext(self._caps, plan.rows, self._kv_dtype, kv_bucket, placed, layouts, preferences)

    def _free_scratch(self) -> None:
        for buffers in self._scratch.values():
            for buffer in {id(buffer): buffer for buffer in buffers.values()}.values():
                self._pool.destroy(buffer)
        self._scratch.clear()

    def _rope_tables(self, positions: int) -> dict[Binding, Any]:
        """The table of each layer's rope for `positions` positions, by layer."""
        tables = {}
        for layer in self._cached_layers:
            rope = self.config.layers[layer].rope
            held = self._rope.get(rope)
            if held is None or held[0] < positions:
                table = rope_table(rope, 0, positions)
                buffer = self._pool.create("scratch", table.nbytes, "rope table")
                self._pool.upload(buffer, table)
                self._rope[rope] = (positions, buffer)
            tables[Binding("rope", str(layer))] = self._rope[rope][1]
        return tables
