"""Packing small items into rows of 32-bit words, and back. Everything is little-endian.

A *quad* is a word that holds four consecutive weights, one a byte, the first in the lowest byte. Quads are
what the word order of the planar layout is made of: with `bits` per weight, a word is 8 / bits quads,
each shifted by `bits` more than the one before it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]

# `bits` ones in the low end of every byte.
BYTE_MASKS = {1: np.uint32(0x01010101), 2: np.uint32(0x03030303), 4: np.uint32(0x0F0F0F0F), 8: np.uint32(0xFFFFFFFF)}


def pack_quads(quads: Words, bits: int) -> Words:
    """(rows, columns / 4) quads of values below 2**bits -> (rows, words) with `bits` per weight."""
    per_word = 8 // bits
    if per_word == 1:
        return quads
    quads = _pad(quads, per_word)
    fields = quads.reshape(len(quads), -1, per_word)  # (rows, words, quads of a word)
    words = fields[:, :, 0].copy()
    for t in range(1, per_word):
        words |= fields[:, :, t] << np.uint32(bits * t)
    return words


def unpack_quads(words: Words, bits: int, columns: int) -> Words:
    """The inverse of `pack_quads`: (rows, words) -> (rows, ceil(columns / 4)) quads."""
    per_word = 8 // bits
    quads = np.empty((*words.shape, per_word), np.uint32)
    for t in range(per_word):
        np.bitwise_and(words >> np.uint32(bits * t), BYTE_MASKS[bits], out=quads[:, :, t])
    return quads.reshape(len(words), -1)[:, : -(-columns // 4)]


def pack_halves(items: npt.NDArray[np.uint16]) -> Words:
    """(rows, n) 16-bit items -> (rows, ceil(n / 2)) words, the first in the low half."""
    return np.ascontiguousarray(_pad(items, 2)).view(np.uint32)


def pack_bytes(items: npt.NDArray[np.uint8]) -> Words:
    """(rows, n) bytes -> (rows, ceil(n / 4)) words, the first in the lowest byte."""
    return np.ascontiguousarray(_pad(items, 4)).view(np.uint32)


def halves(words: Words, count: int) -> npt.NDArray[np.uint16]:
    """The first `count` 16-bit items of each row: (rows, words) -> (rows, count)."""
    return np.ascontiguousarray(words).view(np.uint16)[:, :count]


def octets(words: Words, count: int) -> npt.NDArray[np.uint8]:
    """The first `count` bytes of each row: (rows, words) -> (rows, count)."""
    return np.ascontiguousarray(words).view(np.uint8)[:, :count]


def nibbles(words: Words, count: int) -> npt.NDArray[np.uint8]:
    """The first `count` 4-bit items of each row: (rows, words) -> (rows, count)."""
    pairs = np.ascontiguousarray(words).view(np.uint8)  # (rows, bytes)
    return np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(words), -1)[:, :count]


def _pad(items: np.ndarray, multiple: int) -> np.ndarray:
    """Fills rows with zeros up to a multiple of items."""
    missing = -items.shape[1] % multiple
    return np.pad(items, ((0, 0), (0, missing))) if missing else items
