"""Matmul kernels against NumPy: every format, every variant, every fused piece, odd sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize  # type: ignore[attr-defined]

from inference.cpu import ops as cpu
from inference.formats.ggml_types import TYPES_BY_NAME
from inference.formats.planar import FORMATS, PlanarTensor, from_dense, from_ggml
from inference.kernels import matmul
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import STATE, DeviceWeight, KernelContext, WeightPart, tensor
from inference.kernels.matmul_shapes import GemvShape, Tile
from inference.plan.ops import Matmul, Op, TensorRef, WeightRef
from tests.inference.kernels.harness import Gpu, place_weight, run
from tests.inference.random_blocks import random_blocks

pytestmark = pytest.mark.gpu

TYPES = [name.upper() for name in FORMATS]
BLOCKS = np.load(Path(__file__).parents[2] / "data" / "quant" / "quant.npz")
REFERENCE_CASES = [c for c in (key.removesuffix("_raw") for key in BLOCKS) if c.removesuffix("_random") in TYPES]


def reference_weight(case: str) -> tuple[PlanarTensor, np.ndarray]:
    """Blocks that ggml's C code has dequantised, and what it gave."""
    expected = BLOCKS[f"{case}_deq"]
    return from_ggml(case.removesuffix("_random"), BLOCKS[f"{case}_raw"].ravel(), *expected.shape), expected


def make_weight(ggml_type: str, rows: int, columns: int, rng: np.random.Generator) -> PlanarTensor:
    """Normal deviates, or random blocks of a type that gguf-py cannot quantise to: as good for arithmetic."""
    try:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        raw = quantize(values, GGMLQuantizationType[ggml_type]).view(np.uint8).reshape(-1)
    except NotImplementedError:
        raw = random_blocks(ggml_type, rows, columns, rng)
    return from_ggml(ggml_type, raw, rows, columns)


def check(
    gpu: Gpu,
    weight: PlanarTensor,
    attributes: Matmul,
    variant: str,
    rows: int,
    max_rows: int,
    dtype: str = "f32",
    split: int = 1,
    seed: int = 0,
    shape: GemvShape | Tile | None = None,
    x: np.ndarray | None = None,
) -> None:
    """Compare with NumPy; `shape` divides the work in another way than the variant would. `x` or normal deviates."""
    rng = np.random.default_rng(seed)
    numpy_dtype = {"f32": np.float32, "f16": np.float16}[dtype]
    deviates = rng.standard_normal((max_rows, weight.columns))
    x = (deviates if x is None else x).astype(numpy_dtype)
    norm = rng.uniform(0.5, 1.5, (1, weight.columns)).astype(np.float32)
    out_columns = weight.rows // 2 if attributes.activation else weight.rows
    residual = rng.standard_normal((max_rows, out_columns)).astype(numpy_dtype)
    bias = rng.standard_normal((weight.rows, 1)).astype(np.float32)

    x_ref = TensorRef("x", max_rows, weight.columns, dtype)  # type: ignore[arg-type]
    residual_ref = TensorRef("residual", max_rows, out_columns, dtype)  # type: ignore[arg-type]
    y_ref = TensorRef("y", max_rows, out_columns, dtype)  # type: ignore[arg-type]
    weight_ref = WeightRef(("w",), weight.rows, weight.columns)
    norm_ref = WeightRef(("norm",), 1, weight.columns)
    bias_ref = WeightRef(("bias",), weight.rows, 1)
    placed, arrays = place_weight("w", weight, split)
    placed_norm, norm_arrays = place_weight("norm", from_dense(norm))
    placed_bias, bias_arrays = place_weight("bias", from_dense(bias))
    refs = [weight_ref, *[bias_ref] * attributes.bias, *[norm_ref] * (attributes.norm_eps is not None)]
    op = Op(
        "matmul", "test", 0, (x_ref, residual_ref) if attributes.residual else (x_ref,), y_ref, attributes,
        tuple(refs),
    )  # fmt: skip
    weights = {weight_ref: placed, norm_ref: placed_norm, bias_ref: placed_bias}
    context = KernelContext(gpu.caps, max_rows, "f32", 1, weights, preferences=(KernelPreference(variant, True),))
    decision = matmul.choose(op, context)
    assert decision.variant == variant
    match shape:
        case GemvShape():
            parts = range(split)
            dispatches = tuple(
                matmul.gemv_dispatch(op, context, p, shape, matmul.sums_in_subgroups(decision, context)) for p in parts
            )
        case Tile():
            dispatches = tuple(matmul.tiled_dispatch(op, context, part, shape) for part in range(split))
        case None:
            dispatches = matmul.dispatches(op, decision, context)
    used = {binding for dispatch in dispatches for binding in dispatch.bindings}
    inputs = {tensor(x_ref): x, tensor(residual_ref): residual, STATE: np.array([0, rows], np.uint32)}
    inputs |= arrays | norm_arrays | bias_arrays
    found = run(
        gpu,
        dispatches,
        {binding: array for binding, array in inputs.items() if binding in used},
        {tensor(y_ref): ((max_rows, out_columns), numpy_dtype)},
    )[tensor(y_ref)][:rows].astype(np.float32)

    wide = x[:rows].astype(np.float32)
    if attributes.norm_eps is not None:
        wide = cpu.rmsnorm(wide, norm[0], attributes.norm_eps)
    expected = wide @ weight.dequantize().T
    if attributes.bias:
        expected = expected + bias[:, 0]
    if attributes.activation:
        gate, up = np.split(expected, 2, axis=1)
        expected = cpu.gate(gate, up, attributes.activation)
    expected = attributes.scale * expected
    if attributes.residual:
        expected = expected + residual[:rows].astype(np.float32)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    # In fixed point each x is off by up to 2^-16 of the largest of 16: 2e-5 of normal deviates.
    exact = 6e-5 if variant == "gemv_packed" else 2e-6
    assert error < (exact if dtype == "f32" else 1e-3), f"relative error {error}"


def gemv_variants(gpu: Gpu, weight: PlanarTensor) -> list[str]:
    """Those that can run; what keeps x as it is comes first."""
    packed = [] if weight.format.dense or weight.format.table else ["gemv_packed"]
    return [*(["gemv_subgroup"] if gpu.caps.subgroup_size else []), "gemv_workgroup", *packed]


@pytest.mark.parametrize("ggml_type", TYPES)
def test_every_format(gpu: Gpu, ggml_type: str) -> None:
    columns = 512 if TYPES_BY_NAME[ggml_type].block_size == 256 else 160
    weight = make_weight(ggml_type, 37, columns, np.random.default_rng(1))
    for variant in gemv_variants(gpu, weight):
        check(gpu, weight, Matmul(), variant, rows=1, max_rows=1)
    check(gpu, weight, Matmul(), "tiled", rows=11, max_rows=16)


@pytest.mark.parametrize("case", REFERENCE_CASES)
def test_every_reference_block(gpu: Gpu, case: str) -> None:
    weight, _ = reference_weight(case)
    check(gpu, weight, Matmul(), gemv_variants(gpu, weight)[0], rows=1, max_rows=1)
    check(gpu, weight, Matmul(), "tiled", rows=11, max_rows=16)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    "attributes",
    [
        Matmul(norm_eps=1e-5),
        Matmul(residual=True),
        Matmul(norm_eps=1e-6, activation="silu"),
        Matmul(norm_eps=1e-6, activation="gelu_tanh", residual=True),
        Matmul(scale=0.25, bias=True, residual=True),
        Matmul(scale=3.0, bias=True, norm_eps=1e-5, activation="silu", residual=True),
    ],
)
def test_every_fused_piece(gpu: Gpu, attributes: Matmul, dtype: str) -> None:
    if dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    weight = make_weight("Q4_1", 90, 96, np.random.default_rng(2))
    for variant in gemv_variants(gpu, weight):
        check(gpu, weight, attributes, variant, rows=1, max_rows=1, dtype=dtype)
    check(gpu, weight, attributes, "tiled", rows=70, max_rows=128, dtype=dtype)


def test_parts_fill_their_own_columns(gpu: Gpu) -> None:
    weight = make_weight("Q8_0", 1200, 64, np.random.default_rng(3))
    for variant in gemv_variants(gpu, weight):
        check(gpu, weight, Matmul(), variant, rows=1, max_rows=1, split=3)
    check(gpu, weight, Matmul(residual=True), "tiled", rows=33, max_rows=64, split=3)


def test_parts_add_their_own_biases(gpu: Gpu) -> None:
    weight = make_weight("Q8_0", 192, 64, np.random.default_rng(6))
    for variant in gemv_variants(gpu, weight):
        check(gpu, weight, Matmul(bias=True), variant, rows=1, max_rows=1, split=3)
    check(gpu, weight, Matmul(bias=True, scale=0.5), "tiled", rows=33, max_rows=64, split=3)


def test_small_workgroup_memory_takes_a_smaller_tile(gpu: Gpu) -> None:
    small = replace(gpu, caps=replace(gpu.caps, max_workgroup_storage=16384))
    weight = make_weight("Q4_0", 128, 64, np.random.default_rng(4))
    check(small, weight, Matmul(norm_eps=1e-5, activation="silu"), "tiled", rows=64, max_rows=64)


@pytest.mark.parametrize(("outputs", "columns"), [(576, 32), (2048, 64), (4096, 128)])
def test_a_gpu_gets_a_tile_that_fills_it(gpu: Gpu, outputs: int, columns: int) -> None:
    real = replace(gpu.caps, software=False)
    ref = WeightRef(("w",), outputs, 64)
    weight = DeviceWeight("w", FORMATS["f32"], 64, (WeightPart(0, outputs),))
    x, y = TensorRef("x", 256, 64, "f32"), TensorRef("y", 256, outputs, "f32")
    op = Op("matmul", "matmul", 0, (x,), y, Matmul(), (ref,))
    context = KernelContext(real, 256, "f32", 256, {ref: weight})
    (dispatch,) = matmul.dispatches(op, matmul.choose(op, context), context)
    assert dispatch.constants["TILE_COLUMNS"] == columns


@pytest.mark.parametrize(
    "tile", [Tile(64, 64, 8, 8, 16), Tile(128, 64, 8, 4, 16, buffers=2), Tile(16, 32, 2, 2, buffers=2)]
)
def test_other_tiles(gpu: Gpu, tile: Tile) -> None:
    weight = make_weight("Q4_1", 90, 96, np.random.default_rng(7))
    everything = Matmul(scale=3.0, bias=True, norm_eps=1e-5, activation="silu", residual=True)
    check(gpu, weight, everything, "tiled", rows=70, max_rows=128, shape=tile)
    check(gpu, make_weight("Q8_0", 150, 160, np.random.default_rng(8)), Matmul(), "tiled", 128, 128, shape=tile)
