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


def _k_codes(blocks: Blocks, start: int) -> Words:
    """12 bytes a block: eight 6-bit scales and eight 6-bit minima -> items of 16 bits, scale below minimum."""
    first, second, third = (_field(blocks, start + i, start + i + 4, "u1") for i in (0, 4, 8))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=2)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=2)
    return pack_halves(_rows(scales | minima.astype(np.uint16) << 8))


def _q4_k(blocks: Blocks) -> BlockParts:
    supers = _rows(_field(blocks, 0, 4, "<u4"))
    return BlockParts(low=_nibbles_256(blocks, 16, chunk=32), scales=_k_codes(blocks, 4), supers=supers)


def _q5_k(blocks: Blocks) -> BlockParts:
    # Bit i of byte j belongs to weight 32 * i + j.
    packed = _field(blocks, 16, 48, "<u4")[:, :, None, :]  # (rows, blocks, 1, 8)
    high = (packed >> np.arange(8, dtype=np.uint32)[:, None]) & BYTE_MASKS[1]  # (rows, blocks, 8, 8)
    return BlockParts(
        low=_nibbles_256(blocks, 48, chunk=32),
        high=_rows(high),
        scales=_k_codes(blocks, 4),
        supers=_rows(_field(blocks, 0, 4, "<u4")),
    )


def _q6_k(blocks: Blocks) -> BlockParts:
    # Each half of a block has 32 bytes: bits 2i and 2i + 1 of byte j belong to weight 32 * i + j of that half.
    packed = _field(blocks, 128, 192, "<u4").reshape(*blocks.shape[:2], 2, 1, 8)
    high = (packed >> np.arange(0, 8, 2, dtype=np.uint32)[:, None]) & BYTE_MASKS[2]  # (rows, blocks, 2, 4, 8)
    return BlockParts(
        low=_nibbles_256(blocks, 0, chunk=64),
        high=_rows(high),
        scales=pack_bytes(_rows(_field(blocks, 192, 208, "u1"))),
        supers=_half_scales(blocks, 208),
    )


BLOCK_READERS: Mapping[str, Callable[[Blocks], BlockParts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
