"""How a tier stores a row: the keys, then the values, of one token and KV head.

As floats, or as 32-bit words: two f16 scales (the keys' in the low half), then the keys' integers, then the values',
each in two's complement, the first column lowest. A scale is the largest magnitude over 2^(bits - 1) - 1; integers
are rounded half to even, as WGSL's `round` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Bits = Literal[0, 4, 8]

MAX_F16 = np.float32(65504.0)


@dataclass(frozen=True)
class RowFormat:
    """Rows of `head_dim` keys and values, as floats where `bits` is 0, else as integers of so many bits."""

    bits: Bits
    head_dim: int

    @property
    def columns(self) -> int:
        """Elements of a row: floats or 32-bit words."""
        return 2 * self.head_dim if self.bits == 0 else 1 + 2 * self.head_dim * self.bits // 32

    def encode(self, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Rows (..., columns) of k and v (..., E) float32: float32, or uint32 words."""
        if self.bits == 0:
            return np.concatenate((k, v), axis=-1)
        k_scale, k_words = quantize(k, self.bits)
        v_scale, v_words = quantize(v, self.bits)
        scales = np.stack((k_scale, v_scale), axis=-1).view(np.uint32)  # (..., 1)
        return np.concatenate((scales, k_words, v_words), axis=-1)

    def decode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys and values (..., E) float32 of rows (..., columns)."""
        if self.bits == 0:
            return rows[..., : self.head_dim], rows[..., self.head_dim :]
        scales = np.ascontiguousarray(rows[..., :1]).view(np.float16)  # (..., 2)
        k_words, v_words = np.split(rows[..., 1:], 2, axis=-1)
        return dequantize(scales[..., 0], k_words, self.bits), dequantize(scales[..., 1], v_words, self.bits)


def quantize(x: np.ndarray, bits: Bits) -> tuple[np.ndarray, np.ndarray]:
    """Scales (...) float16 and words (..., E * bits / 32) uint32 of x (..., E) float32."""
    levels = 2 ** (bits - 1) - 1
    scale = np.minimum(np.abs(x).max(axis=-1) / np.float32(levels), MAX_F16).astype(np.float16)
    # What is divided by is the scale that is stored, so that dequantising undoes it.
    stored = scale.astype(np.float32)[..., None]
    inverse = np.divide(np.float32(1), stored, out=np.zeros_like(stored), where=stored > 0)
    integers = np.clip(np.rint(x * inverse), -levels, levels).astype(np.int8)
    return scale, pack_integers(integers, bits)


def dequantize(scale: np.ndarray, words: np.ndarray, bits: Bits) -> np.ndarray:
    """x (..., E) float32 of scales (...) and words (..., E * bits / 32)."""
    return unpack_integers(words, bits) * scale.astype(np.float32)[..., None]


def pack_integers(integers: np.ndarray, bits: Bits) -> np.ndarray:
    """Words (..., E * bits / 32) uint32 of integers (..., E) int8."""
    octets: np.ndarray = integers.view(np.uint8)
    if bits == 4:
        octets = octets[..., 0::2] & 0xF | octets[..., 1::2] << 4
    return np.ascontiguousarray(octets).view(np.uint32)


def unpack_integers(words: np.ndarray, bits: Bits) -> np.ndarray:
    """Integers (..., E) int8 of words (..., E * bits / 32) uint32."""
    octets = np.ascontiguousarray(words).view(np.int8)
    if bits == 8:
        return octets
    # A shift to the left and back extends the sign of the low four bits.
    pairs = np.stack((octets << 4 >> 4, octets >> 4), axis=-1)  # (..., E / 2, 2)
    return pairs.reshape(*octets.shape[:-1], 2 * octets.shape[-1])
