"""GEMV in every way it can be divided: units, lanes, rows, splits, staging, several rows of X."""

from __future__ import annotations

import numpy as np
import pytest

from inference.formats.ggml_types import TYPES_BY_NAME
from inference.formats.planar import FORMATS
from inference.kernels.matmul_shapes import GemvShape
from inference.plan.ops import Matmul
from tests.inference.kernels.harness import Gpu
from tests.inference.kernels.test_matmul import TYPES, check, gemv_variants, make_weight

pytestmark = pytest.mark.gpu

FUSED = Matmul(scale=3.0, bias=True, norm_eps=1e-5, activation="silu", residual=True)
# x of 544 columns: 17 units of 32, which no number of lanes divides.
CONVERTING = (GemvShape(32, 4, 8, 2, split=4), GemvShape(32, 4, 4, 2, staged=544))
MANTISSA = (
    GemvShape(32, 8, 4, 2, split=2, unroll=2, decode="mantissa"),
    GemvShape(32, 4, 8, 1, split=2, staged=256, decode="mantissa"),
)
PACKED = (
    GemvShape(32, 4, 8, 2, split=2, unroll=2, staged=544, decode="packed"),
    GemvShape(32, 8, 4, 1, staged=256, decode="packed"),
)
SHAPES = (GemvShape(8, 4, 8, 2, unroll=2), *CONVERTING, *MANTISSA)


def shape_for(shape: GemvShape, ggml_type: str) -> GemvShape:
    """The same with the units that a format has: dense weights come in eights."""
    unit = 8 if FORMATS[ggml_type.lower()].dense else shape.unit
    return GemvShape(**{**shape.__dict__, "unit": unit})


@pytest.mark.parametrize("ggml_type", TYPES)
def test_every_format(gpu: Gpu, ggml_type: str) -> None:
    columns = 768 if TYPES_BY_NAME[ggml_type].block_size == 256 else 544
    weight = make_weight(ggml_type, 37, columns, np.random.default_rng(1))
    turn = TYPES.index(ggml_type) % 2
    for shape, rows in ((CONVERTING[turn], 1), (MANTISSA[1 - turn], 3 - turn)):
        check(gpu, weight, Matmul(), gemv_variants(gpu, weight)[0], rows, rows, shape=shape_for(shape, ggml_type))
    if "gemv_packed" in gemv_variants(gpu, weight):
        check(gpu, weight, Matmul(), "gemv_packed", 1 + turn, 1 + turn, shape=PACKED[turn])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_fused_piece(gpu: Gpu, shape: GemvShape, dtype: str) -> None:
    if dtype == "f16" and not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    weight = make_weight("Q4_1", 90, 544, np.random.default_rng(2))
    for variant, rows in zip(gemv_variants(gpu, weight)[:-1], (2, 1), strict=False):
        check(gpu, weight, FUSED, variant, rows, max_rows=rows if rows == 1 else 3, dtype=dtype, shape=shape)


@pytest.mark.parametrize("shape", PACKED)
def test_every_fused_piece_in_fixed_point(gpu: Gpu, shape: GemvShape) -> None:
    weight = make_weight("Q4_1", 90, 544, np.random.default_rng(2))
    for rows in (1, 2):
        check(gpu, weight, FUSED, "gemv_packed", rows, max_rows=rows if rows == 1 else 3, shape=shape)


def test_fixed_point_holds_what_is_small_beside_what_is_large(gpu: Gpu) -> None:
    """Each 16 columns have a scale of their own, also where all are 0 or tiny."""
    weight = make_weight("Q6_K", 96, 512, np.random.default_rng(4))
    x = np.random.default_rng(5).standard_normal((1, 512)).astype(np.float32)
    x *= np.repeat(np.float32([1e-3, 1e4, 0, 1e-38, 1, 300, 1e-6, 10, *[0] * 8]), 32)
    for columns in (slice(0, 32), slice(32, 64), slice(192, 224)):
        only = np.zeros_like(x)
        only[:, columns] = x[:, columns]
        check(gpu, weight, Matmul(), "gemv_packed", 1, 1, x=only)
    check(gpu, weight, Matmul(), "gemv_packed", 1, 1, x=x)


def test_more_rows_than_one_takes(gpu: Gpu) -> None:
    weight = make_weight("Q8_0", 40, 96, np.random.default_rng(3))
    for rows in (5, 8, 11):
        check(gpu, weight, FUSED, gemv_variants(gpu, weight)[0], rows, max_rows=16)
