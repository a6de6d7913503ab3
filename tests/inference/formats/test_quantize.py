"""Quantising at load: within stated bounds, in GGML's own layout, and refused where a format cannot hold a weight."""

import gguf
import numpy as np
import pytest

from inference.errors import UnsupportedModel
from inference.formats import quantize as quantize_module
from inference.formats.planar import FORMATS, PlanarTensor, from_dense, from_ggml
from inference.formats.quantize import quantize
from inference.formats.words import halves, octets, unpack_quads

NAMES = ["q8_0", "q4_1", "f16"]
# The least step of f16: scales below its normal range are whole numbers of these.
TINY = 2.0**-24


def matrix(kind: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    normal = rng.standard_normal((24, 160))
    outliers = np.where(rng.random(normal.shape) < 0.02, 30 * normal, normal)
    values = {
        "normal": normal, "outliers": outliers, "skewed": np.exp(normal) + 3, "small": normal * 1e-5,
        "vanishing": normal * 1e-8, "zero": 0 * normal, "constant": 0 * normal - 0.7, "large": normal * 5000,
    }[kind]  # fmt: skip
    return values.astype(np.float32)


KINDS = ["normal", "outliers", "skewed", "small", "vanishing", "zero", "constant", "large"]


def groups(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 32).astype(np.float64)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_q8_0_is_within_half_a_step(kind: str) -> None:
    """The step is a group's largest magnitude / 127, rounded up to an f16."""
    values = matrix(kind)
    error = groups(quantize(from_dense(values), "q8_0").dequantize()) - groups(values)
    step = np.abs(groups(values)).max(axis=1) / 127 * (1 + 2**-10) + TINY
    assert (np.abs(error).max(axis=1) <= step / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_q4_1_is_within_half_a_step_of_the_range_in_the_mean_square(kind: str) -> None:
    """As rounding to 16 levels from the least to the largest is; besides, scale and minimum are rounded to f16."""
    values = matrix(kind)
    error = groups(quantize(from_dense(values), "q4_1").dequantize()) - groups(values)
    low, high = groups(values).min(axis=1), groups(values).max(axis=1)
    rounding = 2**-11 * (np.maximum(np.abs(low), np.abs(high)) + (high - low)) + 16 * TINY
    assert (np.sqrt(np.square(error).mean(axis=1)) <= (high - low) / 30 + rounding).all()


@pytest.mark.parametrize(("format_name", "bound"), [("q8_0", 1.01), ("q4_1", 0.96)])
@pytest.mark.parametrize("kind", ["normal", "outliers", "skewed"])
def test_not_worse_than_the_reference_quantiser(format_name: str, bound: float, kind: str) -> None:
    values = matrix(kind)
    ggml_type = gguf.GGMLQuantizationType[format_name.upper()]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(values, ggml_type), ggml_type)
    ours = quantize(from_dense(values), format_name).dequantize()
    assert relative_error(ours, values) <= bound * relative_error(theirs, values)


def ggml_blocks(tensor: PlanarTensor) -> np.ndarray:
    """The planes of a q8_0 or q4_1 tensor put together as GGML's blocks, uint8 (blocks, bytes)."""
    count = tensor.rows * tensor.columns // 32
    if tensor.format.name == "q8_0":
        scales = halves(tensor.planes["scales"], tensor.columns // 32).reshape(count, 1).view(np.uint8)
        return np.hstack([scales, octets(tensor.planes["low"], tensor.columns).reshape(count, 32)])
    codes = unpack_quads(tensor.planes["low"], 4, tensor.columns).view(np.uint8).reshape(count, 32)
    return np.hstack([tensor.planes["scales"].reshape(count, 1).view(np.uint8), codes[:, :16] | codes[:, 16:] << 4])


@pytest.mark.parametrize("format_name", ["q8_0", "q4_1"])
def test_the_blocks_are_ggmls(format_name: str) -> None:
    tensor = quantize(from_dense(matrix("outliers")), format_name)
    blocks = ggml_blocks(tensor)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[format_name.upper()])
    assert np.array_equal(tensor.dequantize().reshape(-1, 32), expected)
    again = from_ggml(format_name.upper(), blocks.ravel(), tensor.rows, tensor.columns)
    assert all(np.array_equal(again.planes[plane], tensor.planes[plane]) for plane in again.planes)


def test_f16_rounds_to_nearest() -> None:
    values = matrix("normal")
    found = quantize(from_dense(values), "f16")
    assert found.format is FORMATS["f16"] and np.array_equal(found.dequantize(), values.astype(np.float16))


@pytest.mark.parametrize("format_name", NAMES)
def test_the_source_format_does_not_matter(format_name: str) -> None:
    exact = (np.round(matrix("normal") * 32) / 32).astype(np.float32)  # f16 and bf16 hold these
    bf16 = from_ggml("BF16", (exact.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel(), *exact.shape)
    sources = [from_dense(exact), from_dense(exact.astype(np.float16)), bf16]
    found = [quantize(source, format_name).dequantize() for source in sources]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("format_name", NAMES)
def test_chunks_change_nothing(format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = from_dense(matrix("outliers"))
    whole = quantize(tensor, format_name)
    monkeypatch.setattr(quantize_module, "CHUNK", 7 * tensor.columns)
    assert all(
        np.array_equal(plane, whole.planes[name]) for name, plane in quantize(tensor, format_name).planes.items()
    )


@pytest.mark.parametrize("format_name", NAMES)
def test_the_source_is_left_as_it_was(format_name: str) -> None:
    values = matrix("normal")[:1, :32].copy()
    before = values.copy()
    quantize(from_dense(values), format_name)
    assert np.array_equal(values, before)


def test_bytes_of_each_format() -> None:
    tensor = from_dense(np.ones((16, 128), np.float32))
    bits = {name: quantize(tensor, name).nbytes * 8 / (16 * 128) for name in NAMES}
    assert bits == {"q8_0": 8.5, "q4_1": 5.0, "f16": 16.0}


@pytest.mark.parametrize("format_name", NAMES)
@pytest.mark.parametrize("value", [1e7, -np.inf, np.nan])
def test_what_a_format_cannot_hold_is_refused_by_place(
    format_name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = matrix("normal")
    values[20, 33] = value
    monkeypatch.setattr(quantize_module, "CHUNK", 7 * values.shape[1])
    with pytest.raises(
        UnsupportedModel, match=rf"holds {value:g} in row 20, column 33, but {format_name} ".replace("+", r"\+")
    ):
        quantize(from_dense(values), format_name)


@pytest.mark.parametrize("format_name", NAMES)
def test_the_largest_that_fits(format_name: str) -> None:
    values = np.full((1, 32), 65504, np.float32)
    values[0, ::2] = -65504
    found = quantize(from_dense(values), format_name).dequantize()
    assert np.isfinite(found).all() and relative_error(found, values) < 1e-3


def test_misuse_is_refused() -> None:
    q8 = quantize(from_dense(matrix("normal")), "q8_0")
    assert quantize(q8, "q8_0") is q8
    with pytest.raises(ValueError, match="q8_0 weights are not quantised to q4_1"):
        quantize(q8, "q4_1")
    with pytest.raises(ValueError, match="f32 weights are not quantised to q6_k"):
        quantize(from_dense(matrix("normal")), "q6_k")
    with pytest.raises(ValueError, match="48 columns are not whole groups of 32"):
        quantize(from_dense(np.ones((2, 48), np.float32)), "q8_0")
