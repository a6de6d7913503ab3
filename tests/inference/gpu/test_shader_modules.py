"""Modules without added checks compile, fail with the compiler's message, and are made publicly where they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

from inference.gpu.device import choose_adapter, open_device
from inference.gpu.encoder import BoundDispatch, PassEncoder
from inference.gpu.queue import run_once
from inference.gpu.shader_modules import create_shader_module

SQUARES = """
@group(0) @binding(0) var<storage, read_write> squares: array<u32>;
@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) index: u32) {
  var square = 0u;
  for (var i = 0u; i < index; i++) { square += index; }
  squares[index] = square;
}
"""


@pytest.fixture(scope="module")
def device() -> Any:
    return open_device(choose_adapter()[0])


def squares(device: Any) -> np.ndarray:
    module = create_shader_module(device, SQUARES, "squares")
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    buffer = device.create_buffer(size=32, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
    entries = [{"binding": 0, "resource": {"buffer": buffer}}]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = PassEncoder()
    run_once(device, encoder, encoder.prepare([BoundDispatch(pipeline, group, (1, 1, 1))]))
    return np.frombuffer(device.queue.read_buffer(buffer), np.uint32)


def test_the_module_computes(device: Any) -> None:
    assert squares(device).tolist() == [i * i for i in range(8)]


def test_a_wrong_shader_is_told_with_its_place(device: Any) -> None:
    with pytest.raises(wgpu.GPUError, match="no definition in scope for identifier"):
        create_shader_module(device, SQUARES.replace("square +=", "square += missing +"), "squares")


def test_without_the_backends_function_the_public_one_is_used(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match=r"^public: squares$"):
        patched.delattr(_api, "to_c_string_view")
        patched.setattr(type(device), "create_shader_module", _refuse)
        create_shader_module(device, SQUARES, "squares")


def _refuse(device: Any, code: str, label: str) -> Any:
    raise RuntimeError(f"public: {label}")
