"""What a model takes on WebGPU: the code that allocates runs on a device that only counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps
from inference.gpu.executor import steps_in_flight
from inference.gpu.program import make_scratch
from inference.gpu.programs import KV_BUCKETS, ROW_BUCKETS, shared_sizes, step_rows
from inference.gpu.weights import DeviceWeights
from inference.kernels.dispatch import Binding, KernelContext
from inference.kv.factory import GpuCaches
from inference.kv.gpu_store import GpuMemory
from inference.kv.layout import GROWTH_STEP, LayerGroup, describe_group
from inference.models.config import ModelConfig
from inference.needs import Need, Needs
from inference.plan.build import build
from inference.plan.fuse import MOST_NORM_ROWS, fuse
from inference.plan.ops import DType
from inference.plan.place import Placement, part_on, place, whole
from inference.rope import table_bytes
from inference.weights import WeightStore

UNLIMITED = 2**62
"""Limits do not apply while counting: whoever reads the needs holds them against the device's own."""


class _Buffer:
    """A buffer without memory."""

    def __init__(self, size: int) -> None:
        self.size = size

    def destroy(self) -> None:
        pass


class _Ignoring:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> _Ignoring:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Ignoring:
        return self


class CountingDevice:
    """Stands for a wgpu device where only the sizes of buffers matter. `largest` holds the most asked for, by label."""

    def __init__(self) -> None:
        self.largest: dict[str, int] = {}
        self.queue = _Ignoring()

    def create_buffer(self, size: int, usage: int, label: str) -> _Buffer:
        self.largest[label] = max(size, self.largest.get(label, 0))
        return _Buffer(size)

    def create_command_encoder(self) -> _Ignoring:
        return _Ignoring()


def model_needs(
    config: ModelConfig,
    store: WeightStore,
    caps: DeviceCaps,
    dtype: DType,
    kv_dtype: DType,
    placement: Placement | None = None,
) -> Needs:
    """What the model takes whatever the context: weights by format, exact to the byte, and scratch. With a
    `placement`, what WebGPU's part of the model takes.

    The scratch is that of all steps that a chat may take. Plans are made for one row, for as many as have their norms
    in matmuls, and for the most; what lies between is taken to grow evenly. Raises BadModelFile where a weight is
    missing, DoesNotFit for rows that no binding holds.
    """
    store.check(build(config, 1, "last"))
    rows = step_rows(config, caps)
    placement = placement or whole("webgpu", config.num_layers)
    counts = (1, MOST_NORM_ROWS, rows)
    fused = (fuse(build(config, count, "last", True, dtype, kv_dtype), store.formats) for count in counts)
    plans = [part_on(place(plan, placement), "webgpu") for plan in fused]
    device = CountingDevice()
    pool = BufferPool(device, UNLIMITED)
    weights = DeviceWeights(store, pool, caps.max_binding)
    weights.reserve(plans[0])
    scratch = []
    for plan in plans:
        before = pool.bytes["scratch"]
        make_scratch(plan, KernelContext(caps, plan.rows, kv_dtype, KV_BUCKETS[-1], {}), pool)
        scratch.append(pool.bytes["scratch"] - before)
    least, few, most = scratch
    a_row = (few - least) // (MOST_NORM_ROWS - 1)
    same = least - a_row  # whatever the rows
    steps = sum(
        same + (a_row * bucket if bucket <= MOST_NORM_ROWS else (most - same) * bucket // rows)
        for bucket in ROW_BUCKETS
        if bucket <= rows
    )
    shared = shared_sizes(config, rows)
    results = shared[Binding("result")] * steps_in_flight(caps).slots
    needs = [Need("weights", name, size) for name, size in sorted(weights.bytes_by_format.items())]
    # A long prompt's steps take no sample, and have a program of their own.
    needs += [
        Need("scratch", f"activations, steps of up to {rows} tokens", steps + most),
        Need("scratch", "tokens, sampling and results", sum(shared.values()) + results),
    ]
    return Needs(tuple(needs), device.largest)


def context_needs(
    config: ModelConfig, groups: Sequence[LayerGroup], context: int, caps: DeviceCaps, kv_dtype: DType
) -> Needs:
    """What one conversation of `context` tokens takes, exact to the byte: keys and values, and the rope tables.

    A cache that grows holds its old buffers until they are copied: that is a need of its own.
    """
    device = CountingDevice()
    pool = BufferPool(device, UNLIMITED)
    memory = GpuMemory(device, pool, kv_dtype, step_rows(config, caps), steps_in_flight(caps).depth, UNLIMITED)
    cache = GpuCaches(config, groups, memory).new(context)
    # As many different tokens as there can be: what depends on them (bdpa) is at its largest.
    cache.note(0, [position % config.vocab_size for position in range(context)])
    for length in (*range(0, context - 1, GROWTH_STEP), context - 1):
        cache.length = length
        cache.ensure(length + 1)
        cache.begin()
    needs = [
        Need("KV cache", describe_group(store.group), sum(buffer.size for buffer in store.buffers().values()))
        for store in cache.stores
    ]
    if growth := pool.peak - pool.bytes["kv"]:
        needs.append(Need("KV cache", "copies while it grows", growth))
    ropes = {config.layers[layer].rope for group in groups for layer in group.layers}
    needs.append(Need("scratch", "rope tables", sum(table_bytes(rope, context) for rope in ropes)))
    return Needs(tuple(needs), device.largest)
