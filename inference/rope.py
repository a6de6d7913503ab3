"""Rotary tables, computed on the host in float64: WGSL promises sin and cos only to about 2^-11."""

from __future__ import annotations

import numpy as np

from inference.models.config import RopeConfig

MIN_POSITIONS = 1024
"""The shortest table that RopeTables makes."""


def rope_table(rope: RopeConfig, first_position: int, count: int) -> np.ndarray:
    """cos and sin for positions first_position .. first_position + count - 1.

    Returns float32 (count, rotary_dim / 2, 2); the last axis is (cos, sin). RoFormer, arXiv:2104.09864.
    """
    half = rope.rotary_dim // 2
    frequencies = rope.theta ** (-np.arange(half, dtype=np.float64) / half)
    if rope.frequency_factors is not None:
        frequencies /= np.asarray(rope.frequency_factors, dtype=np.float64)
    positions = np.arange(first_position, first_position + count, dtype=np.float64) * rope.position_scale
    angles = np.outer(positions, frequencies)
    return (rope.magnitude * np.stack([np.cos(angles), np.sin(angles)], axis=-1)).astype(np.float32)


def table_bytes(rope: RopeConfig, positions: int) -> int:
    """Bytes of a table for so many positions."""
    return positions * (rope.rotary_dim // 2) * 2 * 4


def inverse_table(table: np.ndarray) -> np.ndarray:
    """The table that turns back what `table` (T, rotary_dim / 2, 2) turned, scaled or not."""
    return table * np.array([1, -1], np.float32) / np.sum(table * table, axis=-1, keepdims=True)


class RopeTables:
    """The tables of several ropes, each as long as was asked for so far."""

    def __init__(self) -> None:
        self._tables: dict[RopeConfig, np.ndarray] = {}

    def rows(self, rope: RopeConfig, first: int, end: int) -> np.ndarray:
        """cos and sin of positions first .. end - 1, float32 (end - first, rotary_dim / 2, 2)."""
        table = self._tables.get(rope)
        if table is None or len(table) < end:
            # Doubling keeps the cost of growing in proportion.
            table = self._tables[rope] = rope_table(rope, 0, max(MIN_POSITIONS, 1 << (end - 1).bit_length()))
        return table[first:end]
