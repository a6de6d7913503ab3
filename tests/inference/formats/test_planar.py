"""The planar layout against GGML's own dequantisation, and its word order against the rule it promises."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.ggml_types import TYPES_BY_NAME
from inference.formats.planar import FORMATS, PlanarTensor, concat_rows, from_dense, from_ggml, widen
from tests.inference.random_blocks import random_blocks

BLOCKS = np.load(Path(__file__).parents[2] / "data" / "quant" / "quant.npz")
CASES = sorted(key.removesuffix("_raw") for key in BLOCKS if key.endswith("_raw"))
COVERED = [case for case in CASES if case.removesuffix("_random").lower() in FORMATS]
QUANTISED = [t.upper() for t, form in FORMATS.items() if not form.dense]


def random_raw(ggml_type: str, rows: int, columns: int) -> np.ndarray:
    return random_blocks(ggml_type, rows, columns, np.random.default_rng(0))


def reference(ggml_type: str, raw: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[ggml_type]).reshape(rows, columns)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("case", COVERED)
def test_equals_the_c_code(case: str) -> None:
    raw, expected = BLOCKS[f"{case}_raw"], BLOCKS[f"{case}_deq"]
    tensor = from_ggml(case.removesuffix("_random"), raw.ravel(), *expected.shape)
    assert tensor.dequantize().dtype == np.float32
    assert np.array_equal(tensor.dequantize(), expected)
    assert tensor.nbytes <= 1.1 * raw.size


@pytest.mark.parametrize("case", sorted(set(CASES) - set(COVERED)))
def test_other_types_are_refused_by_name(case: str) -> None:
    ggml_type = case.removesuffix("_random")
    with pytest.raises(UnsupportedModel, match=f"type {ggml_type} is not supported.*Q4_K"):
        from_ggml(ggml_type, BLOCKS[f"{case}_raw"].ravel(), *BLOCKS[f"{case}_deq"].shape)


def test_every_type_has_a_reference() -> None:
    assert {case.removesuffix("_random") for case in COVERED} == {t.upper() for t in FORMATS} - {"F32"}


@pytest.mark.parametrize("exponent", [0, 1, 2, 254, 255])
def test_exponents_at_the_ends_of_their_range(exponent: int) -> None:
    """The first two are below f32's normal range; with the last one, entries above 1 pass its largest number."""
    raw = np.zeros(17, np.uint8)
    raw[:2] = exponent, 0x90 | 1
    found = from_ggml("MXFP4", raw, 1, 32).dequantize()
    assert found[0, 0] == -found[0, 16] == np.ldexp(np.float32(1), exponent - 128)
    assert np.array_equal(found, reference("MXFP4", raw, 1, 32))


@pytest.mark.parametrize("ggml_type", QUANTISED)
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (3, 768), (5, 1280)])
def test_equals_the_reference(ggml_type: str, rows: int, columns: int) -> None:
    raw = random_raw(ggml_type, rows, columns)
    found = from_ggml(ggml_type, raw, rows, columns).dequantize()
    assert relative_error(found, reference(ggml_type, raw, rows, columns)) <= 1e-6


@pytest.mark.parametrize("ggml_type", [t for t in QUANTISED if TYPES_BY_NAME[t].block_size == 32])
@pytest.mark.parametrize("columns", [32, 96, 160])
def test_rows_that_do_not_fill_words(ggml_type: str, columns: int) -> None:
    raw = random_raw(ggml_type, 3, columns)
    tensor = from_ggml(ggml_type, raw, 3, columns)
    assert relative_error(tensor.dequantize(), reference(ggml_type, raw, 3, columns)) <= 1e-6
    assert all(plane.shape[0] == 3 and plane.dtype == np.uint32 for plane in tensor.planes.values())


def codes_by_the_rule(tensor: PlanarTensor, plane: str, bits: int) -> list[list[int]]:
    """Reads a plane one weight at a time, as the module's description says."""
    rows = []
    for row in tensor.planes[plane].tolist():
        per_word = 32 // bits
        weights = []
        for k in range(tensor.columns):
            t, b = divmod(k % per_word, 4)
            weights.append(row[k // per_word] >> (8 * b + bits * t) & ((1 << bits) - 1))
        rows.append(weights)
    return rows


# Bytes of a block, by their offset, that set every scale to one and every minimum to zero.
ONE = (0x00, 0x3C)  # f16
UNIT_SCALES = {
    "Q4_0": {0: ONE}, "Q4_1": {0: (*ONE, 0, 0)}, "Q5_0": {0: ONE}, "Q5_1": {0: (*ONE, 0, 0)}, "Q8_0": {0: ONE},
    "Q2_K": {0: (1,) * 16, 80: (*ONE, 0, 0)}, "Q3_K": {96: (0x11,) * 8 + (0xAA,) * 4, 108: ONE},
    "Q4_K": {0: (*ONE, 0, 0, *(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1))},
    "Q5_K": {0: (*ONE, 0, 0, *(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1))},
    "Q6_K": {192: (1,) * 16 + ONE},
    "IQ4_NL": {0: ONE}, "IQ4_XS": {0: (*ONE, 0xAA, 0xAA, 0x11, 0x11, 0x11, 0x11)}, "MXFP4": {0: (128,)},
}  # fmt: skip


@pytest.mark.parametrize("ggml_type", QUANTISED)
def test_word_order(ggml_type: str) -> None:
    """With scales of one and minima of zero, the reference's weights are the quants themselves."""
    form = FORMATS[ggml_type.lower()]
    raw = random_raw(ggml_type, 2, 512).reshape(-1, TYPES_BY_NAME[ggml_type].block_bytes)
    for at, values in UNIT_SCALES[ggml_type].items():
        raw[:, at : at + len(values)] = values
    tensor = from_ggml(ggml_type, raw.ravel(), 2, 512)
    codes = np.array(codes_by_the_rule(tensor, "low", form.low_bits))
    if form.low_bits == 8:
        codes = np.where(codes > 127, codes - 256, codes)
    if form.high_bits:
        codes |= np.array(codes_by_the_rule(tensor, "high", form.high_bits)) << form.low_bits
    quants = np.array(form.table)[codes] if form.table else codes - form.zero
    assert np.array_equal(quants, reference(ggml_type, raw.ravel(), 2, 512))


def test_scale_planes() -> None:
    """One f16 in each half for q4_0; scale in the low half and minimum in the high half for q4_1."""
    raw = random_raw("Q4_0", 1, 96)
    tensor = from_ggml("Q4_0", raw, 1, 96)
    d = raw.reshape(3, 18)[:, :2].copy().view(np.uint16)[:, 0].astype(int)
    assert tensor.planes["scales"].tolist() == [[d[0] | d[1] << 16, d[2]]]
    raw = random_raw("Q4_1", 1, 64)
    tensor = from_ggml("Q4_1", raw, 1, 64)
    pairs = raw.reshape(2, 20)[:, :4].copy().view(np.uint32)[:, 0]
    assert tensor.planes["scales"].tolist() == [pairs.tolist()]


def test_dense_planes() -> None:
    f32 = np.array([[1.0, 2.0, 3.0]], np.float32)
    assert from_dense(f32).planes["low"].tolist() == f32.view(np.uint32).tolist()
    f16 = f32.astype(np.float16)
    bits = f16.view(np.uint16).astype(int)[0]
    assert from_dense(f16).planes["low"].tolist() == [[bits[0] | bits[1] << 16, bits[2]]]
    for array, ggml_type in ((f32, "F32"), (f16, "F16")):
        tensor = from_ggml(ggml_type, array.view(np.uint8).ravel(), 1, 3)
        assert np.array_equal(tensor.dequantize(), f32) and np.array_equal(from_dense(array).dequantize(), f32)
    bf16 = (f32.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(from_ggml("BF16", bf16.view(np.uint8).ravel(), 1, 3).dequantize(), f32)
    assert np.shares_memory(from_ggml("F32", f32.view(np.uint8).ravel(), 1, 3).planes["low"], f32)
    with pytest.raises(ValueError, match="float64"):
        from_dense(np.zeros((1, 2)))  # type: ignore[arg-type]


@pytest.mark.parametrize("ggml_type", ["F32", "F16", "BF16", *QUANTISED])
def test_memory_stays_near_the_file(ggml_type: str) -> None:
    kind = TYPES_BY_NAME[ggml_type]
    raw = np.zeros(8 * 768 // kind.block_size * kind.block_bytes, np.uint8)
    assert from_ggml(ggml_type, raw, 8, 768).nbytes <= 1.1 * raw.size


@pytest.mark.parametrize("ggml_type", QUANTISED)
def test_slice_and_concat_are_exact(ggml_type: str) -> None:
    tensor = from_ggml(ggml_type, random_raw(ggml_type, 7, 256), 7, 256)
    parts = [tensor.slice_rows(0, 2), tensor.slice_rows(2, 3), tensor.slice_rows(3, 7)]
    assert np.array_equal(parts[2].dequantize(), tensor.dequantize()[3:7])
    assert np.shares_memory(parts[2].planes["low"], tensor.planes["low"])
    whole = concat_rows(parts)
    assert (whole.rows, whole.columns, whole.format) == (7, 256, tensor.format)
    assert all(np.array_equal(whole.planes[p], tensor.planes[p]) for p in tensor.planes)


def test_slice_and_concat_refuse_what_does_not_fit() -> None:
    q8, q4 = (from_ggml(t, random_raw(t, 2, 64), 2, 64) for t in ("Q8_0", "Q4_0"))
    with pytest.raises(ValueError, match="q8_0 rows of 64 and q4_0 rows of 64"):
        concat_rows([q8, q4])
    with pytest.raises(ValueError, match="rows 1 to 3"):
        q8.slice_rows(1, 3)


@pytest.mark.parametrize("ggml_type", ["Q4_0", "Q5_0", "Q8_0", "IQ4_NL"])
def test_widening_is_exact(ggml_type: str) -> None:
    tensor = from_ggml(ggml_type, random_raw(ggml_type, 3, 160), 3, 160)
    wide = widen(tensor, "q8_0")
    assert wide.format is FORMATS["q8_0"] and wide.planes.keys() == {"low", "scales"}
    assert np.array_equal(wide.dequantize(), tensor.dequantize())


def test_widening_refuses_what_is_not_exact() -> None:
    for ggml_type in set(QUANTISED) - {"Q4_0", "Q5_0", "Q8_0", "IQ4_NL"}:
        with pytest.raises(ValueError, match=f"{ggml_type.lower()} has no exact form in q8_0"):
            widen(from_ggml(ggml_type, random_raw(ggml_type, 1, 256), 1, 256), "q8_0")


def test_wrong_length_is_refused() -> None:
    with pytest.raises(BadModelFile, match="Q4_0 tensor of 2 x 32 cannot be 18 bytes"):
        from_ggml("Q4_0", np.zeros(18, np.uint8), 2, 32)
