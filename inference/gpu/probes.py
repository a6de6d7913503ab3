"""Facts about a device that only a shader can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

_WORKGROUPS = (64, 256)

_SUBGROUP_PROBE = """
@group(0) @binding(0) var<storage, read_write> found: array<vec4<u32>>;
@compute @workgroup_size({size})
fn main(@builtin(local_invocation_index) index: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {{
  found[index] = vec4<u32>(size, lane, subgroupShuffleXor(index, 1u), subgroupAdd(1u));
}}
"""


def probe_subgroups(device: Any) -> tuple[int, str]:
    """(smallest subgroup size seen, "") or (0, why subgroups cannot be used).

    Kernels need invocations numbered along the subgroup, a shuffle and a sum that work, and a power of two.
    """
    if "subgroup" not in device.features:
        return 0, "the adapter has no subgroup operations"
    sizes: set[int] = set()
    for workgroup in _WORKGROUPS:
        try:
            found = _run(device, _SUBGROUP_PROBE.format(size=workgroup), workgroup)
        except (wgpu.GPUError, RuntimeError):
            return 0, "the driver does not compile subgroup operations"
        size, lane, neighbour, count = found.T
        index = np.arange(workgroup)
        if (lane != index % size).any() or (neighbour != index ^ 1).any() or (count != size).any():
            return 0, "the driver numbers the invocations of a subgroup in another way than along the workgroup"
        sizes.update(int(value) for value in size)
    smallest = min(sizes)
    if smallest < 4 or smallest & (smallest - 1):
        return 0, f"subgroups of {smallest} are too small"
    return smallest, ""


def _run(device: Any, code: str, count: int) -> np.ndarray:
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer(size=count * 16, usage=usage)
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": {"buffer": buffer}}]
    )
    encoder = device.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(pipeline)
    compute_pass.set_bind_group(0, group)
    compute_pass.dispatch_workgroups(1)
    compute_pass.end()
    device.queue.submit([encoder.finish()])
    found = np.frombuffer(device.queue.read_buffer(buffer), np.uint32).reshape(count, 4)
    buffer.destroy()
    return found
