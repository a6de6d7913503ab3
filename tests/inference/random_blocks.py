"""Random blocks of every quantised GGML type: any bits are valid ones, but scales must be finite and of one size."""

from __future__ import annotations

import numpy as np

from inference.formats.ggml_types import TYPES_BY_NAME

# Where a block's f16 fields are.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip


def random_blocks(ggml_type: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """A tensor as it is in a file: uint8 (bytes,)."""
    kind = TYPES_BY_NAME[ggml_type]
    raw = rng.integers(0, 256, (rows * columns // kind.block_size, kind.block_bytes), dtype=np.uint8)
    for at in HALVES[ggml_type]:
        raw[:, at : at + 2] = rng.uniform(-0.1, 0.1, (len(raw), 1)).astype(np.float16).view(np.uint8)
    if ggml_type == "MXFP4":
        raw[:, 0] = rng.integers(120, 132, len(raw))
    return raw.ravel()
