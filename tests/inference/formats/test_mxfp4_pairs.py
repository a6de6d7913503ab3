"""MXFP4 in two tensors of a safetensors file, against the values that the format gives to codes and exponents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from inference.errors import BadModelFile
from inference.formats.planar import from_ggml
from inference.formats.safetensors import open_safetensors

VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
"""Of the codes 0 to 7; codes 8 to 15 are their negatives."""


def write(path: Path, **tensors: np.ndarray) -> Path:
    save_file(tensors, path)
    return path


def test_codes_and_exponents(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (2, 5, 3, 16), np.uint8)
    scales = rng.integers(117, 138, (2, 5, 3), np.uint8)
    file = open_safetensors(write(tmp_path / "model.safetensors", w_blocks=blocks, w_scales=scales, other=blocks))
    assert sorted(file.tensors) == ["other", "w"]
    info = file.tensors["w"]
    assert (info.type, info.shape, info.nbytes) == ("MXFP4", (2, 5, 96), blocks.nbytes + scales.nbytes)
    found = from_ggml("MXFP4", file.data("w"), 10, 96).dequantize()
    for row in range(10):
        for column in range(96):
            byte = blocks.reshape(10, 48)[row, column // 2]
            code = int(byte) >> 4 * (column % 2) & 15
            value = VALUES[code % 8] * (-1 if code >= 8 else 1)
            assert found[row, column] == value * 2.0 ** (int(scales.reshape(10, 3)[row, column // 32]) - 127)


@pytest.mark.parametrize(
    "tensors",
    [
        {"w_blocks": np.zeros((4, 2, 16), np.uint8)},
        {"w_blocks": np.zeros((4, 2, 16), np.uint8), "w_scales": np.zeros((4, 3), np.uint8)},
        {"w_blocks": np.zeros((4, 2, 16), np.float32), "w_scales": np.zeros((4, 2), np.float32)},
    ],
    ids=["no scales", "other shapes", "floats"],
)
def test_what_is_no_pair_stays_as_it_is(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    file = open_safetensors(write(tmp_path / "model.safetensors", **tensors))
    assert set(file.tensors) == set(tensors)
    with pytest.raises(BadModelFile, match="no tensor named w,"):
        file.data("w")
