"""MXFP4 matrices as safetensors hold them: a tensor of codes, NAME_blocks, and one of exponents, NAME_scales.

Of matrices (..., rows, columns), the blocks are U8 (..., rows, columns / 32, 16), a byte for two consecutive weights,
the first in the low half; the scales are U8 (..., rows, columns / 32). This is how Transformers stores GPT-OSS's
experts; the encoding of weights and exponents is that of the OCP Microscaling Formats, version 1.0, as in GGML.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from inference.formats.tensors import TensorInfo

BLOCKS, SCALES = "_blocks", "_scales"
Bytes = npt.NDArray[np.uint8]


def join_pairs(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors with each pair as one, of type MXFP4 and named without an ending; others stay as they are."""
    result = dict(tensors)
    for name, blocks in tensors.items():
        stem = name.removesuffix(BLOCKS)
        scales = tensors.get(stem + SCALES)
        if stem == name or scales is None or stem in tensors or (blocks.type, scales.type) != ("U8", "U8"):
            continue
        if blocks.shape == (*scales.shape, 16):
            del result[name], result[stem + SCALES]
            shape = (*scales.shape[:-1], scales.shape[-1] * 32)
            result[stem] = TensorInfo(stem, "MXFP4", shape, blocks.offset, blocks.nbytes + scales.nbytes)
    return result


def ggml_blocks(blocks: Bytes, scales: Bytes) -> Bytes:
    """The bytes of a pair as GGML's blocks: the exponent, then a byte for weights i and i + 16 of 32."""
    codes = blocks.reshape(-1, 2, 8)
    first, second = codes[:, 0], codes[:, 1]  # of 16 weights each
    result = np.empty((scales.size, 17), np.uint8)
    result[:, 0] = scales.reshape(-1)
    result[:, 1::2] = first & 15 | second << 4
    result[:, 2::2] = first >> 4 | second & 240
    return result.reshape(-1)
