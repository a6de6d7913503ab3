"""Rotary tables, computed on the host in float64: WGSL promises sin and cos only to about 2^-11."""

from __future__ import annotations

import numpy as np

from inference.models.config import RopeConfig


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
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
