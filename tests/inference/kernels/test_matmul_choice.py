"""Which matmul kernel is chosen, by the matrix, the rows and the device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.formats.planar import FORMATS
from inference.gpu.device import DeviceCaps
from inference.kernels import matmul
from inference.kernels.base import Decision
from inference.kernels.dispatch import DeviceWeight, KernelContext, WeightPart
from inference.plan.ops import Matmul, Op, TensorRef, WeightRef

GPU = DeviceCaps(
    name="a GPU", backend="Vulkan", software=False, f16=True, timestamps=True, subgroup_size=32, subgroup_reason="",
    max_workgroup_storage=32768, max_invocations=1024, max_workgroups=65535, max_binding=2**31 - 4, max_buffer=2**40,
    max_storage_buffers=16,
)  # fmt: skip


def choose(caps: DeviceCaps, outputs: int, columns: int, rows: int = 1, format_name: str = "q4_0") -> Decision:
    ref = WeightRef(("w",), outputs, columns)
    weight = DeviceWeight("w", FORMATS[format_name], columns, (WeightPart(0, outputs),))
    x, y = TensorRef("x", rows, columns, "f32"), TensorRef("y", rows, outputs, "f32")
    op = Op("matmul", "m", 0, (x,), y, Matmul(), (ref,))
    return matmul.choose(op, KernelContext(caps, rows, "f32", 1, {ref: weight}))


@pytest.mark.parametrize("format_name", ["q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "q2_k"])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_large_quantised_matrices_multiply_bytes(format_name: str, rows: int) -> None:
    decision = choose(GPU, 4096, 4096, rows, format_name)
    assert (decision.variant, decision.accumulate) == ("gemv_packed", "i32, f32")


@pytest.mark.parametrize(
    ("caps", "outputs", "columns", "format_name", "why"),
    [
        (GPU, 576, 576, "q4_0", "converting x takes longer than it saves"),
        (GPU, 2048, 2048, "q4_0", "converting x takes longer than it saves"),
        (GPU, 4096, 4096, "f16", "codes of f16 are no integers"),
        (GPU, 4096, 4096, "iq4_nl", "codes of iq4_nl are no integers"),
        (replace(GPU, backend="Metal"), 4096, 4096, "q4_0", "no instruction that multiplies four bytes"),
        (replace(GPU, software=True), 4096, 4096, "q4_0", "no instruction that multiplies four bytes"),
        (
            replace(GPU, max_invocations=256),
            4096,
            14336,
            "q4_0",
            "needs 512 invocations a workgroup, the device has 256",
        ),
        (replace(GPU, max_workgroup_storage=8192), 4096, 4096, "q4_0", "of workgroup memory, the device has 8192"),
    ],
)
def test_others_do_not_and_say_why(caps: DeviceCaps, outputs: int, columns: int, format_name: str, why: str) -> None:
    decision = choose(caps, outputs, columns, 1, format_name)
    assert (decision.variant, decision.accumulate) == ("gemv_subgroup", "f32")
    assert why in dict(decision.rejected)["gemv_packed"]


def test_many_rows_share_tiles() -> None:
    decision = choose(GPU, 4096, 4096, 64)
    assert decision.variant == "tiled"
    assert "64 rows would read the weights 32 times" in dict(decision.rejected)["gemv_packed"]
