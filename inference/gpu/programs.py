"""Plans of one model on one device, made into programs bound to its buffers; and what all of those share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inference.errors import DoesNotFit
from inference.gpu.adapter_weights import AdapterWeights
from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps
from inference.gpu.encoder import PassEncoder, Prepared
from inference.gpu.pipelines import PipelineCache
from inference.gpu.program import Program, decide, make_program, make_scratch
from inference.gpu.weights import DeviceWeights, device_formats
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import Binding, KernelContext
from inference.kernels.sample import RESULT_WORDS, SETTINGS_WORDS
from inference.kv.gpu_store import GpuStore
from inference.kv.layout import KvCache
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig, RopeConfig
from inference.plan.build import build
from inference.plan.explain import PlanRow, explain
from inference.plan.fuse import fuse
from inference.plan.ops import DType, Logits, Plan
from inference.rope import rope_table
from inference.weights import WeightStore

ROW_BUCKETS = (1, 8, 32, 64, 256)
"""A step runs the program of the smallest bucket that holds its rows; rows beyond them leave early."""

KV_BUCKETS = (256, 1024, 4096, 16384, 65536, 2**31)
"""Decode programs are made for the smallest bucket that holds kv_len: what splits the KV range depends on it."""

PlanKey = tuple[int, Logits, bool]
GpuCache = KvCache[GpuStore]


def step_rows(caps: DeviceCaps) -> int:
    """Most tokens of one step. A software adapter takes most of a second for 64: smaller steps are cancelled sooner."""
    return ROW_BUCKETS[-2] if caps.software else ROW_BUCKETS[-1]


def shared_sizes(config: ModelConfig, chunk: int) -> dict[Binding, int]:
    """Bytes of the buffers that all programs share, for steps of up to `chunk` tokens."""
    return {
        Binding("state"): 16,
        Binding("tokens"): chunk * 4,
        Binding("sampling"): SETTINGS_WORDS * 4,
        Binding("counts"): config.vocab_size * 4,
        Binding("result"): RESULT_WORDS * 4,
    }


class Programs:
    """The plans, the weights and the programs of one model. `shared` are the buffers that all programs share.

    `any_cache` is never filled: it has the layouts for what is asked without a sequence at hand.
    """

    def __init__(
        self,
        config: ModelConfig,
        store: WeightStore,
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
        self.adapters = AdapterSet(config)
        self.weights = DeviceWeights(store, pool, caps.max_binding)
        self.adapter_weights = AdapterWeights(pool, caps.max_binding)
        sizes = shared_sizes(config, step_rows(caps))
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
        self._plan_version = 0
        self._scratch: dict[PlanKey, dict[Binding, Any]] = {}
        self._rope: dict[RopeConfig, tuple[int, Any]] = {}

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Upload the weights; `progress` hears (weights done, weights in all). Raises DoesNotFit."""
        self.weights.upload(self.plan(1, "last"), progress)

    def set_adapters(self, adapters: AdapterSet) -> None:
        """See Executor. Where only strengths differ, matrices are written anew and every program stays."""
        before, plans, same_plan = self.adapters, self._plans, adapters.ranks == self.adapters.ranks
        self.adapters = adapters
        if not same_plan:
            self._plans = {}
        try:
            self.adapter_weights.upload(adapters, self.plan(1, "last"))
        except DoesNotFit:
            self.adapters, self._plans = before, plans
            raise
        if not same_plan:
            self._plan_version += 1
            self._free_scratch()

    def plan(self, rows: int, logits: Logits, sampled: bool = False) -> Plan:
        """The fused plan for a bucket of rows, made once."""
        key = (rows, logits, sampled)
        if key not in self._plans:
            plan = build(self.config, rows, logits, sampled, self._dtype, self._kv_dtype, self.adapters.ranks)
            self._plans[key] = fuse(plan, self._store.formats | self.adapters.formats)
        return self._plans[key]

    def rows(self, rows: int) -> list[PlanRow]:
        """The explained plan of a step of `rows` tokens that samples."""
        plan = self.plan(rows, "last", sampled=True)
        decisions, dispatches = decide(plan, self._context(plan, KV_BUCKETS[1], self._any_cache))
        formats = device_formats(self._store.formats | self.adapters.formats, plan)
        return explain(plan, decisions, "webgpu", formats, [len(group) for group in dispatches])

    def program(self, cache: GpuCache, rows: int, logits: Logits, sampled: bool) -> tuple[Program, Prepared]:
        """The program for a step of `rows` that begins at the cache's length, bound to the cache's buffers."""
        row_bucket = next(bucket for bucket in ROW_BUCKETS if rows <= bucket)
        kv_bucket = next(bucket for bucket in KV_BUCKETS if cache.length + rows <= bucket)
        versions = (self._plan_version, *(store.version for store in cache.stores))
        key = (row_bucket, kv_bucket, logits, sampled)
        if key not in cache.programs or cache.programs[key][0] != versions:
            plan = self.plan(row_bucket, logits, sampled)
            buffers = self.weights.buffers | self.adapter_weights.buffers | self.shared
            buffers |= self._scratch_for(plan, sampled)
            buffers |= self._rope_tables(cache.context)
            for store in cache.stores:
                buffers |= store.buffers()
            context = self._context(plan, kv_bucket, cache)
            program = make_program(plan, context, buffers, self._device, self._pipelines)
            cache.programs[key] = (versions, program, self._encoder.prepare(program.dispatches))
        return cache.programs[key][1:]

    def output(self, program: Program) -> Any:
        """The buffer of what the last operation of `program` makes, where that is not a sample."""
        return self._scratch[_key(program.plan, False)][Binding("tensor", program.plan.ops[-1].output.name)]

    def _context(self, plan: Plan, kv_bucket: int, cache: GpuCache) -> KernelContext:
        layouts = {layer: cache.store(layer).layout(layer) for layer in range(self.config.num_layers)}
        placed, preferences = self.weights.placed | self.adapter_weights.placed, self._preferences
        return KernelContext(self._caps, plan.rows, self._kv_dtype, kv_bucket, placed, layouts, preferences)

    def _scratch_for(self, plan: Plan, sampled: bool) -> dict[Binding, Any]:
        key = _key(plan, sampled)
        if key not in self._scratch:
            self._scratch[key] = make_scratch(plan, self._context(plan, KV_BUCKETS[-1], self._any_cache), self._pool)
        return self._scratch[key]

    def _free_scratch(self) -> None:
        for buffers in self._scratch.values():
            for buffer in {id(buffer): buffer for buffer in buffers.values()}.values():
                self._pool.destroy(buffer)
        self._scratch.clear()

    def _rope_tables(self, positions: int) -> dict[Binding, Any]:
        """The table of each layer's rope for `positions` positions, by layer."""
        tables = {}
        for layer, layer_config in enumerate(self.config.layers):
            rope = layer_config.rope
            held = self._rope.get(rope)
            if held is None or held[0] < positions:
                table = rope_table(rope, 0, positions)
                buffer = self._pool.create("scratch", table.nbytes, "rope table")
                self._pool.upload(buffer, table)
                self._rope[rope] = (positions, buffer)
            tables[Binding("rope", str(layer))] = self._rope[rope][1]
        return tables


def _key(plan: Plan, sampled: bool) -> PlanKey:
    return plan.rows, plan.logits, sampled
