"""Takes GGML's quantised blocks apart into quads, scales and minima, whole tensors at a time.

Block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Each function takes the blocks
of a tensor, uint8 (rows, blocks per row, bytes per block), and gives the planes of `inference.formats.planar`
with quants still as quads (see `inference.formats.words`). `lo` and `hi` are the low and high four bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.formats.words import BYTE_MASKS, Words, pack_bytes, pack_halves

Blocks = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class BlockParts:
    """`low` and `high`: quads, uint32 (rows, columns / 4). `scales` and `supers`: words, ready as planes."""

    low: Words
    scales: Words
    high: Words | None = None
    supers: Words | None = None


def _field(blocks: Blocks, start: int, stop: int, dtype: npt.DTypeLike) -> np.ndarray:
    """Bytes start .. stop of each block as `dtype`: (rows, blocks, items)."""
    return np.ascontiguousarray(blocks[:, :, start:stop]).view(dtype)


def _rows(array: np.ndarray) -> np.ndarray:
    """(rows, ...) -> (rows, everything else)."""
    return array.reshape(len(array), -1)


def _lo(words: Words) -> Words:
    return words & BYTE_MASKS[4]


def _hi(words: Words) -> Words:
    return (words >> np.uint32(4)) & BYTE_MASKS[4]


def _nibbles_32(blocks: Blocks, start: int) -> Words:
    """16 bytes a block: weight j in the low half of byte j, weight 16 + j in its high half."""
    packed = _field(blocks, start, start + 16, "<u4")  # (rows, blocks, 4)
    return _rows(np.concatenate([_lo(packed), _hi(packed)], axis=2))


def _bits_32(blocks: Blocks, start: int) -> Words:
    """4 bytes a block: bit j belongs to weight j."""
    packed = _field(blocks, start, start + 4, "<u4")  # (rows, blocks, 1)
    nibbles = (packed >> np.arange(0, 32, 4, dtype=np.uint32)) & np.uint32(0xF)  # (rows, blocks, 8)
    # Copies shifted by 0, 7, 14 and 21 bring bit b of a nibble to the low end of byte b.
    return _rows((nibbles * np.uint32(0x00204081)) & BYTE_MASKS[1])


def _half_scales(blocks: Blocks, start: int) -> Words:
    return pack_halves(_rows(_field(blocks, start, start + 2, "<u2")))


def _q4_0(blocks: Blocks) -> BlockParts:
    return BlockParts(low=_nibbles_32(blocks, 2), scales=_half_scales(blocks, 0))


def _q4_1(blocks: Blocks) -> BlockParts:
    return BlockParts(low=_nibbles_32(blocks, 4), scales=_rows(_field(blocks, 0, 4, "<u4")))


def _q5_0(blocks: Blocks) -> BlockParts:
    return BlockParts(low=_nibbles_32(blocks, 6), high=_bits_32(blocks, 2), scales=_half_scales(blocks, 0))


def _q5_1(blocks: Blocks) -> BlockParts:
    scales = _rows(_field(blocks, 0, 4, "<u4"))
    return BlockParts(low=_nibbles_32(blocks, 8), high=_bits_32(blocks, 4), scales=scales)


def _q8_0(blocks: Blocks) -> BlockParts:
    return BlockParts(low=_rows(_field(blocks, 2, 34, "<u4")), scales=_half_scales(blocks, 0))


def _nibbles_256(blocks: Blocks, start: int, chunk: int) -> Words:
    """128 bytes a block, `chunk` at a time: first the weights in their low halves, then those in their high ones."""
    packed = _field(blocks, start, start + 128, "<u4")
    packed = packed.reshape(*blocks.shape[:2], 128 // chunk, 1, chunk // 4)
    return _rows(np.concatenate([_lo(packed), _hi(packed)], axis=3))


def _pairs_256(blocks: Blocks, start: int) -> Words:
    """64 bytes a block, half a block from each 32: bits 2i and 2i + 1 of byte j belong to its weight 32 * i + j."""
    packed = _field(blocks, start, start + 64, "<u4").reshape(*blocks.shape[:2], 2, 1, 8)
    return _rows((packed >> np.arange(0, 8, 2, dtype=np.uint32)[:, None]) & BYTE_MASKS[2])  # of (..., 2, 4, 8)


def _bits_256(blocks: Blocks, start: int) -> Words:
    """32 bytes a block: bit i of byte j belongs to weight 32 * i + j."""
    packed = _field(blocks, start, start + 32, "<u4")[:, :, None, :]  # (rows, blocks, 1, 8)
    return _rows((packed >> np.arange(8, dtype=np.uint32)[:, None]) & BYTE_MASKS[1])  # of (rows, blocks, 8, 8)


def _k_codes(blocks: Blocks, start: int) -> Words:
    """12 bytes a block: eight 6-bit scales and eight 6-bit minima -> items of 16 bits, scale below minimum."""
    first, second, third = (_field(blocks, start + i, start + i + 4, "u1") for i in (0, 4, 8))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=2)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=2)
    return pack_halves(_rows(scales | minima.astype(np.uint16) << 8))


def _q2_k(blocks: Blocks) -> BlockParts:
    return BlockParts(
        low=_pairs_256(blocks, 16),
        scales=_rows(_field(blocks, 0, 16, "<u4")),  # the scale code in the low half of each byte, as in the plane
        supers=_rows(_field(blocks, 80, 84, "<u4")),
    )


def _q3_k(blocks: Blocks) -> BlockParts:
    # 6-bit codes: the low 4 bits of codes j and 8 + j in byte j, the high 2 of codes 4 * i + j in byte 8 + j.
    low, high = _field(blocks, 96, 104, "u1"), _field(blocks, 104, 108, "u1")
    codes = np.concatenate([low & 15, low >> 4], axis=2)  # (rows, blocks, 16)
    codes |= np.concatenate([(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)], axis=2)
    return BlockParts(
        low=_pairs_256(blocks, 32),
        high=_bits_256(blocks, 0),
        scales=pack_bytes(_rows(codes - np.uint8(32))),
        supers=_half_scales(blocks, 108),
    )


def _q4_k(blocks: Blocks) -> BlockParts:
    supers = _rows(_field(blocks, 0, 4, "<u4"))
    return BlockParts(low=_nibbles_256(blocks, 16, chunk=32), scales=_k_codes(blocks, 4), supers=supers)


def _q5_k(blocks: Blocks) -> BlockParts:
    return BlockParts(
        low=_nibbles_256(blocks, 48, chunk=32),
        high=_bits_256(blocks, 16),
        scales=_k_codes(blocks, 4),
        supers=_rows(_field(blocks, 0, 4, "<u4")),
    )


def _q6_k(blocks: Blocks) -> BlockParts:
    return BlockParts(
        low=_nibbles_256(blocks, 0, chunk=64),
        high=_pairs_256(blocks, 128),
        scales=pack_bytes(_rows(_field(blocks, 192, 208, "u1"))),
        supers=_half_scales(blocks, 208),
    )


def _iq4_xs(blocks: Blocks) -> BlockParts:
    # 6-bit codes: the low 4 bits of code j in nibble j, the high 2 in bits 2j and 2j + 1 of an item of 16 bits.
    low, high = _field(blocks, 4, 8, "u1"), _field(blocks, 2, 4, "<u2")
    codes = np.stack([low & 15, low >> 4], axis=3).reshape(*blocks.shape[:2], 8)
    codes |= ((high >> np.arange(0, 16, 2, dtype=np.uint16) & 3) << 4).astype(np.uint8)
    return BlockParts(
        low=_nibbles_256(blocks, 8, chunk=16),
        scales=pack_bytes(_rows(codes - np.uint8(32))),
        supers=_half_scales(blocks, 0),
    )


def _mxfp4(blocks: Blocks) -> BlockParts:
    return BlockParts(low=_nibbles_32(blocks, 1), scales=pack_bytes(_rows(_field(blocks, 0, 1, "u1"))))


BLOCK_READERS: Mapping[str, Callable[[Blocks], BlockParts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
