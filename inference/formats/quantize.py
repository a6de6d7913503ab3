"""Dense weights quantised while they load, for files that hold them in more bits than memory has room for.

Groups are 32 consecutive weights of a row, as in GGML's types of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from inference.errors import UnsupportedModel
from inference.formats.planar import FORMATS, PlanarTensor
from inference.formats.words import Words, pack_halves, pack_quads

Floats = npt.NDArray[np.float32]

GROUP = 32
F16_MAX = 65504.0
# Weights worked on at a time: their temporaries stay in a core's cache.
CHUNK = 1 << 18
# Parts of a group's range that q4_1's 16 levels are tried on: clipping the ends a little makes all steps finer.
RANGE_PARTS = (1.0, 0.93, 0.86)


def quantize(tensor: PlanarTensor, format_name: str) -> PlanarTensor:
    """The dense matrix (rows, columns) in the planar format `format_name`: "q8_0", "q4_1" or "f16".

    q8_0 is within half a step of 1/127 of a group's largest magnitude; q4_1 takes the scale and minimum that have
    the least squared error among a few. Rows are converted in small chunks, so that besides the result only some MB
    are held. Raises UnsupportedModel for a weight that is no number or that the format cannot hold ("holds
    70000 in row 3 ...": the caller puts the tensor's name in front), ValueError for a tensor that is quantised already
    and for columns that are not whole groups.
    """
    if tensor.format.name == format_name:
        return tensor
    form = FORMATS[format_name]
    if not tensor.format.dense or format_name not in _PACKERS:
        raise ValueError(f"{tensor.format.name} weights are not quantised to {format_name}")
    if not form.dense and tensor.columns % form.group_size:
        raise ValueError(f"{tensor.columns} columns are not whole groups of {form.group_size}")
    limit, pack = _PACKERS[format_name]
    planes = {name: np.empty((tensor.rows, words), np.uint32) for name, words in form.row_words(tensor.columns).items()}
    step = max(1, CHUNK // tensor.columns)
    for start in range(0, tensor.rows, step):
        part = slice(start, min(start + step, tensor.rows))
        weights = tensor.slice_rows(part.start, part.stop).dequantize()
        if not np.abs(weights).max() <= limit:  # also where it is NaN
            row, column = np.argwhere(~(np.abs(weights) <= limit))[0]
            raise UnsupportedModel(
                f"holds {weights[row, column]:g} in row {start + row}, column {column}, but {format_name} ends at "
                f"{limit:g}; keep the weights as they are in the file (no --weights)"
            )
        for name, words in pack(weights).items():
            planes[name][part] = words
    return PlanarTensor(form, tensor.rows, tensor.columns, planes)


def _pack_f16(weights: Floats) -> dict[str, Words]:
    return {"low": pack_halves(weights.astype(np.float16).view(np.uint16))}


def _pack_q8_0(weights: Floats) -> dict[str, Words]:
    groups = _groups(weights)
    exact = np.abs(groups).max(axis=0) / np.float32(127)
    scale = exact.astype(np.float16)
    # Never rounded down, so that no quant passes 127.
    scale = np.where(scale < exact, np.nextafter(scale, np.float16(np.inf)), scale)
    return {
        "low": _rows(np.rint(groups * _inverse(scale.astype(np.float32))), len(weights)),
        "scales": pack_halves(scale.view(np.uint16).reshape(len(weights), -1)),
    }


def _pack_q4_1(weights: Floats) -> dict[str, Words]:
    groups = _groups(weights)
    low, high = groups.min(axis=0), groups.max(axis=0)
    middle = (low + high) / 2
    groups -= middle  # sums about the middle keep their digits
    total = groups.sum(axis=0)
    best_gain, scale, minimum = np.zeros_like(low), np.zeros_like(low), np.zeros_like(low)
    for part in RANGE_PARTS:
        span = (high - low) * np.float32(part)
        codes = _codes(groups, span / np.float32(15), -span / 2)
        # The line through (code, weight) with the least squared error; `gain` is by how much it lowers that error.
        codes_total = codes.sum(axis=0)
        covariance = np.einsum("kg,kg->g", codes, groups) - codes_total * total / GROUP
        variance = np.einsum("kg,kg->g", codes, codes) - codes_total * codes_total / GROUP
        slope = covariance / np.where(variance > 0, variance, 1)
        gain = slope * covariance
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        scale = np.where(better, slope, scale)
        minimum = np.where(better, (total - slope * codes_total) / GROUP, minimum)
    pairs = np.stack([scale, np.clip(minimum + middle, -F16_MAX, F16_MAX)], axis=1).astype(np.float16)  # (groups, 2)
    scale, minimum = pairs[:, 0].astype(np.float32), pairs[:, 1].astype(np.float32) - middle
    return {
        "low": pack_quads(_rows(_codes(groups, scale, minimum), len(weights)), 4),
        "scales": pairs.view(np.uint32).reshape(len(weights), -1),
    }


def _codes(groups: Floats, scale: Floats, minimum: Floats) -> Floats:
    """The nearest of 16 levels for each weight."""
    codes = groups - minimum
    codes *= _inverse(scale)
    return np.clip(np.rint(codes, out=codes), 0, 15, out=codes)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where the scale is 0."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)


def _groups(weights: Floats) -> Floats:
    """(rows, columns) -> (32, groups): what is summed over a group is then a sum of rows, which NumPy does fastest."""
    return weights.reshape(-1, GROUP).T.copy()


def _rows(codes: Floats, rows: int) -> Words:
    """(32, groups) -> quads (rows, columns / 4)."""
    return np.ascontiguousarray(codes.astype(np.int8).T).view(np.uint32).reshape(rows, -1)


_PACKERS: Mapping[str, tuple[float, Callable[[Floats], dict[str, Words]]]] = {
    "f16": (F16_MAX, _pack_f16),
    "q8_0": (127 * F16_MAX, _pack_q8_0),
    "q4_1": (F16_MAX, _pack_q4_1),
}
"""By format: the largest magnitude that it holds, and weights (rows, columns) -> planes."""
