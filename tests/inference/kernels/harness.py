"""Run kernels on small arrays: fresh random inputs in, poisoned outputs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import wgpu

from inference.formats.planar import PlanarTensor
from inference.gpu.device import DeviceCaps, choose_adapter, describe_caps, open_device
from inference.gpu.pipelines import PipelineCache
from inference.gpu.probes import probe_subgroups
from inference.gpu.shader_modules import create_shader_module
from inference.kernels.dispatch import Binding, DeviceWeight, Dispatch, WeightPart

POISON = np.uint32(0x7FC0DEAD)  # a NaN in f32, and in both halves' worth of f16
POISONING = """
var<workgroup> memory: array<u32, WORDS>;
@group(0) @binding(0) var<storage, read_write> kept: array<u32>;

@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) index: u32) {
  for (var at = index; at < WORDSu; at += 64u) { memory[at] = POISONu; }
  workgroupBarrier();
  if (memory[WORDSu - 1u - index] != POISONu) { kept[0] = index; }
}
"""


@dataclass
class Gpu:
    """A device for tests with its compiled kernels."""

    device: Any
    caps: DeviceCaps
    pipelines: PipelineCache
    poisoning: tuple[Any, Any]
    """Pipeline and bind group of a shader that leaves POISON in workgroup memory: nobody sets that to 0."""


def every_other(*factors: Sequence[Any]) -> list[Any]:
    """The product of three factors or more, as parameters; every other one is slow.

    Each pair of two factors' values is among the rest. A combination is a pipeline, which a software adapter takes
    longer to compile than to run.
    """
    combinations = product(*map(enumerate, factors))
    return [
        pytest.param(*(value for _, value in each), marks=[pytest.mark.slow] * (sum(index for index, _ in each) % 2))
        for each in combinations
    ]


def open_gpu() -> Gpu:
    adapter, _ = choose_adapter()
    device = open_device(adapter)
    size, reason = probe_subgroups(device)
    caps = describe_caps(adapter, device, size, reason)
    return Gpu(device, caps, PipelineCache(device), _poisoning(device, caps))


def _poisoning(device: Any, caps: DeviceCaps) -> tuple[Any, Any]:
    words = min(caps.max_workgroup_storage, 32768) // 4
    code = POISONING.replace("WORDS", str(words)).replace("POISON", str(POISON))
    module = create_shader_module(device, code, "poisoning")
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    kept = device.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE)
    entries = [{"binding": 0, "resource": {"buffer": kept}}]
    return pipeline, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)


def run(
    gpu: Gpu,
    dispatches: Sequence[Dispatch],
    inputs: Mapping[Binding, np.ndarray],
    outputs: Mapping[Binding, tuple[tuple[int, ...], Any]],
    held: Mapping[Binding, Any] | None = None,
) -> dict[Binding, np.ndarray]:
    """Run `dispatches`; `outputs` maps each output binding to (shape, dtype). They are poisoned before, and workgroup
    memory before each dispatch.

    A binding in both is uploaded and read back (a cache that is appended to). `held` are buffers that there are.
    """
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffers: dict[Binding, Any] = dict(held or {})
    for binding, (shape, dtype) in outputs.items():
        words = -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 4)
        data = np.full(max(words, 4), POISON, np.uint32)
        if binding in inputs:
            raw = np.ascontiguousarray(inputs[binding], dtype).reshape(-1).view(np.uint8)
            data.view(np.uint8)[: raw.size] = raw
        buffers[binding] = gpu.device.create_buffer_with_data(data=data, usage=usage)
    for binding, array in inputs.items():
        if binding not in buffers:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            padded = np.zeros(max(16, -(-raw.size // 4) * 4), np.uint8)
            padded[: raw.size] = raw
            buffers[binding] = gpu.device.create_buffer_with_data(data=padded, usage=usage)
    encoder = gpu.device.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    for dispatch in dispatches:
        pipeline = gpu.pipelines.get(dispatch.shader, dispatch.constants)
        entries = [
            {"binding": index, "resource": {"buffer": buffers[binding]}}
            for index, binding in enumerate(dispatch.bindings)
        ]
        group = gpu.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        compute_pass.set_pipeline(gpu.poisoning[0])
        compute_pass.set_bind_group(0, gpu.poisoning[1])
        compute_pass.dispatch_workgroups(8)
        compute_pass.set_pipeline(pipeline)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*dispatch.grid)
    compute_pass.end()
    gpu.device.queue.submit([encoder.finish()])
    results = {}
    for binding, (shape, dtype) in outputs.items():
        raw = np.frombuffer(gpu.device.queue.read_buffer(buffers[binding]), np.uint8)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        results[binding] = raw[:size].view(dtype).reshape(shape)
    return results


def place_weight(name: str, tensor: PlanarTensor, split: int = 1) -> tuple[DeviceWeight, dict[Binding, np.ndarray]]:
    """A weight in `split` parts of equal rows, with the arrays of its bindings."""
    rows = tensor.rows // split
    parts = tuple(WeightPart(index * rows, rows) for index in range(split))
    weight = DeviceWeight(name, tensor.format, tensor.columns, parts)
    arrays: dict[Binding, np.ndarray] = {}
    for index, part in enumerate(parts):
        piece = tensor.slice_rows(part.first_row, part.first_row + part.rows)
        for binding, plane in zip(weight.bindings(index), weight.planes, strict=True):
            arrays[binding] = piece.planes[plane]
    return weight, arrays
