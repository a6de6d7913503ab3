"""The planar layout: every kind of weight as a few planes of 32-bit words, as the kernels read them.

A GGUF block mixes quants, scales and minima; the planar form keeps each in a plane of its own, uint32 of
shape (rows, words per row), so that a kernel reads whole words. No precision is lost and no scale is
rounded: planes hold the file's own bits.

Plane `low` (and `high`, where quants have more than 4 bits), `bits` per weight, one rule for 1, 2, 4 and 8:
a word holds 32 / bits consecutive weights, and field t (bits wide, t = 0 .. 8 / bits - 1) of byte b holds
weight 4 * t + b. So `(word >> (bits * t)) & mask in every byte` gives weights 4t .. 4t + 3 as bytes.
The code is `low | high << low_bits`; an 8-bit `low` is signed (two's complement). The quant q is `table[code]`
where the format has a table, else code - zero. Dense weights of 16 bits are two a word, the first in the low
half; f32 is one a word.

Planes `scales` and `supers`, where a group has `group_size` weights and a super-block 256; what is named
first is in the lowest bits:

- none: neither plane; the weights are floats.
- scale: `scales` holds f16 d per group, two a word. Weight q * d.
- exponent: `scales` holds a byte e per group, four a word. Weight q * 2**(e - 128).
- scale_min: `scales` holds a word per group, f16 d and f16 m. Weight q * d + m.
- super_scale: `scales` holds an int8 code per group, four a word; `supers` f16 D, two a word.
  Weight q * (D * code).
- super_scale_min: `scales` holds the scale code and the minimum code per group, `code_bits` wide each, packed
  without gaps; `supers` a word, f16 D and f16 Dmin. Weight q * (D * code) - Dmin * minimum code.

Rows are padded to whole words in every plane, so rows can always be sliced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.ggml_blocks import BLOCK_READERS
from inference.formats.ggml_types import TYPES_BY_NAME
from inference.formats.words import Words, halves, nibbles, octets, pack_halves, pack_quads, unpack_quads

ScaleForm = Literal["none", "scale", "scale_min", "exponent", "super_scale", "super_scale_min"]
SUPER_BLOCK = 256

# The values of E2M1 (OCP Microscaling Formats, version 1.0), doubled to be integers: MXFP4's exponent makes up for it.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# The levels of IQ4_NL and IQ4_XS: `kvalues_iq4nl` in ggml-common.h.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class PlanarFormat:
    """How weights are stored. `group_size` is 0 for dense weights; a format with a table of 16 has no `zero`."""

    name: str
    low_bits: int
    high_bits: int = 0
    group_size: int = 0
    scale_form: ScaleForm = "none"
    zero: int = 0
    code_bits: int = 8
    table: tuple[int, ...] = ()

    @property
    def dense(self) -> bool:
        """Whether the weights are floats, without scales."""
        return self.scale_form == "none"

    def row_words(self, columns: int) -> Mapping[str, int]:
        """The planes in their order, and how many words a row of `columns` weights takes in each."""
        weights_and_bits = {"low": (1, self.low_bits)}  # so many consecutive weights share so many bits
        if self.high_bits:
            weights_and_bits["high"] = (1, self.high_bits)
        match self.scale_form:
            case "scale":
                weights_and_bits["scales"] = (self.group_size, 16)
            case "scale_min":
                weights_and_bits["scales"] = (self.group_size, 32)
            case "exponent":
                weights_and_bits["scales"] = (self.group_size, 8)
            case "super_scale":
                weights_and_bits |= {"scales": (self.group_size, 8), "supers": (SUPER_BLOCK, 16)}
            case "super_scale_min":
                weights_and_bits |= {"scales": (self.group_size, 2 * self.code_bits), "supers": (SUPER_BLOCK, 32)}
        return {plane: -(-columns // each * bits // 32) for plane, (each, bits) in weights_and_bits.items()}


FORMATS: Mapping[str, PlanarFormat] = {
    f.name: f
    for f in (
        PlanarFormat("f32", low_bits=32),
        PlanarFormat("f16", low_bits=16),
        PlanarFormat("bf16", low_bits=16),
        PlanarFormat("q4_0", low_bits=4, group_size=32, scale_form="scale", zero=8),
        PlanarFormat("q4_1", low_bits=4, group_size=32, scale_form="scale_min"),
        PlanarFormat("q5_0", low_bits=4, high_bits=1, group_size=32, scale_form="scale", zero=16),
        PlanarFormat("q5_1", low_bits=4, high_bits=1, group_size=32, scale_form="scale_min"),
        PlanarFormat("q8_0", low_bits=8, group_size=32, scale_form="scale"),
        PlanarFormat("q2_k", low_bits=2, group_size=16, scale_form="super_scale_min", code_bits=4),
        PlanarFormat("q3_k", low_bits=2, high_bits=1, group_size=16, scale_form="super_scale", zero=4),
        PlanarFormat("q4_k", low_bits=4, group_size=32, scale_form="super_scale_min"),
        PlanarFormat("q5_k", low_bits=4, high_bits=1, group_size=32, scale_form="super_scale_min"),
        PlanarFormat("q6_k", low_bits=4, high_bits=2, group_size=16, scale_form="super_scale", zero=32),
        PlanarFormat("iq4_nl", low_bits=4, group_size=32, scale_form="scale", table=IQ4_LEVELS),
        PlanarFormat("iq4_xs", low_bits=4, group_size=32, scale_form="super_scale", table=IQ4_LEVELS),
        PlanarFormat("mxfp4", low_bits=4, group_size=32, scale_form="exponent", table=E2M1_DOUBLED),
    )
}

WIDENS_TO_Q8_0 = frozenset(f.name for f in FORMATS.values() if f.scale_form == "scale" and f.group_size == 32)
"""Formats that q8_0 holds exactly: the same f16 scale for 32 weights, and quants that fit a signed byte."""


@dataclass(frozen=True)
class PlanarTensor:
    """A weight matrix (rows, columns). `planes` are uint32 (rows, words per row): low, high, scales, supers."""

    format: PlanarFormat
    rows: int
    columns: int
    planes: Mapping[str, Words]

    @property
    def nbytes(self) -> int:
        """Bytes of all planes together: what the matrix takes on the device."""
        return sum(plane.nbytes for plane in self.planes.values())

    def slice_rows(self, start: int, stop: int) -> PlanarTensor:
        """Rows start .. stop as views of the same planes."""
        if not 0 <= start <= stop <= self.rows:
            raise ValueError(f"rows {start} to {stop} of a matrix that has {self.rows}")
        planes = {name: plane[start:stop] for name, plane in self.planes.items()}
        return PlanarTensor(self.format, stop - start, self.columns, planes)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The weights as float32 (rows, columns), bit for bit as GGML's reference dequantisation gives them."""
        if self.format.dense:
            return _dense_weights(self)
        weights = _quants(self).astype(np.float32)
        scale, offset = _group_scales(self)
        grouped = weights.reshape(self.rows, -1, self.format.group_size)  # (rows, groups, group_size), a view
        grouped *= scale[:, :, None]
        if offset is not None:
            grouped += offset[:, :, None]
        return weights


def from_ggml(ggml_type: str, raw: npt.NDArray[np.uint8], rows: int, columns: int) -> PlanarTensor:
    """Converts a tensor as it is in a GGUF file: `raw`, uint8 (bytes,), holds rows of blocks of `ggml_type`.

    F32 is not copied. Raises UnsupportedModel, naming the type, where it has no planar form; BadModelFile where
    `raw` is not as long as the shape demands.
    """
    name = ggml_type.lower()
    if name not in FORMATS:
        raise UnsupportedModel(
            f"tensor type {ggml_type} is not supported, only {', '.join(f.upper() for f in FORMATS)}; "
            "use another quantisation of this model, such as Q8_0 or Q4_K_M"
        )
    kind = TYPES_BY_NAME[ggml_type]
    if columns % kind.block_size or raw.size != rows * columns // kind.block_size * kind.block_bytes:
        raise BadModelFile(
            f"a {ggml_type} tensor of {rows} x {columns} cannot be {raw.size} bytes long (blocks of {kind.block_size} "
            f"weights take {kind.block_bytes} bytes); fetch the file again"
        )
    if FORMATS[name].dense:
        weights = raw.reshape(rows, -1)
        low = weights.view(np.uint32) if name == "f32" else pack_halves(weights.view(np.uint16))
        return PlanarTensor(FORMATS[name], rows, columns, {"low": low})
    parts = BLOCK_READERS[ggml_type](raw.reshape(rows, columns // kind.block_size, kind.block_bytes))
    planes = {"low": pack_quads(parts.low, FORMATS[name].low_bits)}
    if parts.high is not None:
        planes["high"] = pack_quads(parts.high, FORMATS[name].high_bits)
    planes["scales"] = parts.scales
    if parts.supers is not None:
        planes["supers"] = parts.supers
    return PlanarTensor(FORMATS[name], rows, columns, planes)


def from_dense(array: npt.NDArray[np.float32] | npt.NDArray[np.float16]) -> PlanarTensor:
    """An f32 or f16 matrix (rows, columns) as a planar tensor of that format."""
    if array.ndim != 2 or array.dtype not in (np.float32, np.float16):
        raise ValueError(f"expected a float32 or float16 matrix, got {array.dtype} {array.shape}")
    rows, columns = array.shape
    if array.dtype == np.float32:
        return PlanarTensor(FORMATS["f32"], rows, columns, {"low": np.ascontiguousarray(array).view(np.uint32)})
    low = pack_halves(np.ascontiguousarray(array).view(np.uint16))
    return PlanarTensor(FORMATS["f16"], rows, columns, {"low": low})


def concat_rows(tensors: Sequence[PlanarTensor]) -> PlanarTensor:
    """Stacks matrices of one format and width: for merged projections."""
    first = tensors[0]
    for other in tensors[1:]:
        if (other.format, other.columns) != (first.format, first.columns):
            raise ValueError(
                f"cannot stack {first.format.name} rows of {first.columns} and "
                f"{other.format.name} rows of {other.columns}"
            )
    planes = {name: np.concatenate([t.planes[name] for t in tensors]) for name in first.planes}
    return PlanarTensor(first.format, sum(t.rows for t in tensors), first.columns, planes)


def widen(tensor: PlanarTensor, format_name: str) -> PlanarTensor:
    """The same weights in a wider format, exactly: one of WIDENS_TO_Q8_0 as q8_0, with the same scales."""
    if tensor.format.name == format_name:
        return tensor
    if tensor.format.name not in WIDENS_TO_Q8_0 or format_name != "q8_0":
        raise ValueError(f"{tensor.format.name} has no exact form in {format_name}")
    low = np.ascontiguousarray(_quants(tensor)).view(np.uint32)
    return PlanarTensor(FORMATS["q8_0"], tensor.rows, tensor.columns, {"low": low, "scales": tensor.planes["scales"]})


def _quants(tensor: PlanarTensor) -> npt.NDArray[np.int8]:
    """The quant of every weight, int8 (rows, columns)."""
    form = tensor.format
    quads = unpack_quads(tensor.planes["low"], form.low_bits, tensor.columns)
    if form.high_bits:
        quads = quads | unpack_quads(tensor.planes["high"], form.high_bits, tensor.columns) << np.uint32(form.low_bits)
    codes = np.ascontiguousarray(quads).view(np.int8)  # (rows, columns)
    if form.table:
        return np.array(form.table, np.int8)[codes]
    return codes - np.int8(form.zero) if form.zero else codes


def _group_scales(tensor: PlanarTensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    """What each group's quants are multiplied by and what is then added: float32 (rows, groups) each."""
    form, scales = tensor.format, tensor.planes["scales"]
    groups = tensor.columns // form.group_size
    match form.scale_form:
        case "scale":
            return _f32(halves(scales, groups)), None
        case "scale_min":
            pairs = halves(scales, 2 * groups)
            return _f32(pairs[:, 0::2]), _f32(pairs[:, 1::2])
        case "exponent":
            return np.ldexp(np.float32(1), octets(scales, groups).astype(np.int32) - 128), None
        case "super_scale":
            big = _per_group(_f32(halves(tensor.planes["supers"], tensor.columns // SUPER_BLOCK)), groups)
            return big * octets(scales, groups).view(np.int8), None
        case "super_scale_min":
            codes = octets(scales, 2 * groups) if form.code_bits == 8 else nibbles(scales, 2 * groups)
            pairs = halves(tensor.planes["supers"], 2 * (tensor.columns // SUPER_BLOCK))
            scale = _per_group(_f32(pairs[:, 0::2]), groups) * codes[:, 0::2]
            return scale, -(_per_group(_f32(pairs[:, 1::2]), groups) * codes[:, 1::2])
    raise ValueError(f"{form.name} has no scales")


def _f32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


def _per_group(per_super_block: npt.NDArray[np.float32], groups: int) -> npt.NDArray[np.float32]:
    """(rows, super-blocks) -> (rows, groups)."""
    return np.repeat(per_super_block, groups // per_super_block.shape[1], axis=1)


def _dense_weights(tensor: PlanarTensor) -> npt.NDArray[np.float32]:
    low = tensor.planes["low"]
    if tensor.format.name == "f32":
        return low.view(np.float32)
    items = halves(low, tensor.columns)
    if tensor.format.name == "f16":
        return _f32(items)
    return (items.astype(np.uint32) << 16).view(np.float32)  # bf16 is the high half of an f32
