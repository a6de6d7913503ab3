"""Rows of cold pages: what is stored, and how close it comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kv.quantize import Bits, RowFormat, dequantize, pack_integers, quantize, unpack_integers

QUANTISED: list[Bits] = [8, 4]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("bits", QUANTISED)
def test_packing_keeps_every_integer(bits: Bits) -> None:
    levels = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=np.int8)
    rows = np.stack((levels, levels[::-1], np.roll(levels, 3)))
    words = pack_integers(rows, bits)
    assert words.dtype == np.uint32 and words.shape == (3, levels.size * bits // 32)
    np.testing.assert_array_equal(unpack_integers(words, bits), rows)


def test_the_first_column_lies_lowest() -> None:
    assert pack_integers(np.array([-1, 0, 1, 127], np.int8), 8).tolist() == [0x7F0100FF]
    assert pack_integers(np.array([-1, 0, 1, 7, -7, 2, 3, -8], np.int8), 4).tolist() == [0x8329710F]


@pytest.mark.parametrize("bits", QUANTISED)
def test_a_row_is_the_scales_then_keys_then_values(bits: Bits) -> None:
    rng = np.random.default_rng(1)
    k, v = (rng.standard_normal((5, 3, 24)).astype(np.float32) for _ in range(2))
    form = RowFormat(bits, 24)
    rows = form.encode(k, v)
    words = 24 * bits // 32
    assert rows.dtype == np.uint32 and rows.shape == (5, 3, form.columns) == (5, 3, 1 + 2 * words)
    levels = 2 ** (bits - 1) - 1
    for part, (x, packed) in enumerate(((k, rows[..., 1 : 1 + words]), (v, rows[..., 1 + words :]))):
        scale = (rows[..., 0] >> (16 * part)).astype(np.uint16).view(np.float16)
        np.testing.assert_allclose(scale, np.abs(x).max(axis=-1) / levels, rtol=1e-3)
        np.testing.assert_array_equal(form.decode(rows)[part], dequantize(scale, packed, bits))
        integers = unpack_integers(packed, bits)
        assert np.abs(integers).max() == levels
        np.testing.assert_array_equal(np.sign(integers)[integers != 0], np.sign(x)[integers != 0])


def test_floats_come_back_as_they_were() -> None:
    rng = np.random.default_rng(2)
    k, v = (rng.standard_normal((2, 7)).astype(np.float32) for _ in range(2))
    form = RowFormat(0, 7)
    rows = form.encode(k, v)
    assert rows.shape == (2, form.columns) == (2, 14)
    for found, expected in zip(form.decode(rows), (k, v), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(QUANTISED),
    st.lists(st.floats(-1000, 1000, width=32), min_size=8, max_size=8),
    st.floats(1e-3, 100),
)
def test_no_value_is_off_by_more_than_half_a_step(bits: Bits, values: list[float], factor: float) -> None:
    x = floats(*values) * np.float32(factor)
    scale, words = quantize(x, bits)
    levels = 2 ** (bits - 1) - 1
    largest = np.abs(x).max()
    if largest / levels < 6.2e-5:  # scales below the normal f16 are coarse
        assert np.abs(dequantize(scale, words, bits)).max() <= 2 * largest
        return
    # Half a step, and what the rounding of the scale to f16 takes from the largest values.
    error = np.abs(dequantize(scale, words, bits) - x).max()
    assert error <= largest * (0.5 / levels + 2**-11) * 1.001


@pytest.mark.parametrize("bits", QUANTISED)
def test_halves_are_rounded_to_even(bits: Bits) -> None:
    levels = 2 ** (bits - 1) - 1
    x = floats(levels, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0)  # a scale of 1
    scale, words = quantize(x, bits)
    assert scale == 1
    assert unpack_integers(words, bits).tolist() == [levels, 0, 2, 2, 0, -2, -2, 0]


@pytest.mark.parametrize("bits", QUANTISED)
def test_zeros_stay_zeros_and_what_f16_cannot_scale_is_bounded(bits: Bits) -> None:
    zeros, words = quantize(np.zeros((2, 8), np.float32), bits)
    assert not zeros.any() and not words.any() and not dequantize(zeros, words, bits).any()
    for size in (1e-12, 1e30):
        found = dequantize(*quantize(np.full(8, -size, np.float32), bits), bits)
        assert np.isfinite(found).all() and (found <= 0).all()
