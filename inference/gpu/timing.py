"""How long parts of a step take on the GPU, by its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

from inference.gpu.encoder import PassEncoder, Prepared

MOST_PASSES = 2048
"""That one set of queries can time: two of the 4096 queries that WebGPU allows in it for each."""


def time_passes(device: Any, encoder: PassEncoder, passes: Sequence[Prepared]) -> list[float]:
    """Run each list of dispatches in a compute pass of its own, one after another; returns the seconds of each.

    The GPU finishes a pass before it begins the next, so that many take longer than one that does the same. The device
    needs the feature timestamp-query.
    """
    period = timestamp_period(device)
    seconds: list[float] = []
    for start in range(0, len(passes), MOST_PASSES):
        ticks = _run(device, encoder, passes[start : start + MOST_PASSES])
        seconds += ((ticks[:, 1] - ticks[:, 0]) * (period * 1e-9)).tolist()
    return seconds


def timestamp_period(device: Any) -> float:
    """Nanoseconds a tick: 1 by WebGPU's rules, but wgpu-native hands out the device's own ticks."""
    try:
        from wgpu.backends.wgpu_native import _api

        return float(_api.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
    except (ImportError, AttributeError):
        return 1.0


def _run(device: Any, encoder: PassEncoder, passes: Sequence[Prepared]) -> np.ndarray:
    """Ticks at the beginning and at the end of each pass, int64 (passes, 2)."""
    count = 2 * len(passes)
    queries = device.create_query_set(type=wgpu.QueryType.timestamp, count=count)
    usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    resolved = device.create_buffer(size=8 * count, usage=usage, label="timestamps")
    commands = device.create_command_encoder()
    for index, prepared in enumerate(passes):
        marks = {
            "query_set": queries,
            "beginning_of_pass_write_index": 2 * index,
            "end_of_pass_write_index": 2 * index + 1,
        }
        compute_pass = commands.begin_compute_pass(timestamp_writes=marks)
        encoder.encode(compute_pass, prepared)
        compute_pass.end()
    commands.resolve_query_set(queries, 0, count, resolved, 0)
    device.queue.submit([commands.finish()])
    ticks = np.frombuffer(device.queue.read_buffer(resolved), np.int64).reshape(-1, 2).copy()
    resolved.destroy()
    queries.destroy()
    return ticks
