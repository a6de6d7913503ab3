"""Weights on the device: split by rows where a binding would be too large, and uploaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from inference.errors import DoesNotFit
from inference.formats.planar import FORMATS, PlanarFormat, PlanarTensor
from inference.gpu.buffers import BufferPool
from inference.kernels.dispatch import Binding, DeviceWeight, WeightPart
from inference.plan.fuse import common_format
from inference.plan.ops import ExpertMatmul, Matmul, Op, Plan, WeightRef
from inference.weights import WeightStore

# Parts of a matrix start at multiples of this, so that no kernel's tile straddles two of them needlessly.
ROW_ALIGNMENT = 64


class DeviceWeights:
    """Every weight of a model on one device, by WeightRef. Tied weights share their buffers."""

    def __init__(self, store: WeightStore, pool: BufferPool, max_binding: int) -> None:
        self._store = store
        self._pool = pool
        self._max_binding = max_binding
        self.placed: dict[WeightRef, DeviceWeight] = {}
        self.buffers: dict[Binding, Any] = {}
        self.bytes_by_format: dict[str, int] = {}

    def reserve(self, plan: Plan) -> None:
        """Create the buffers of the weights of `plan`, still empty. Raises DoesNotFit."""
        for op in plan.ops:
            for ref in op.weights:
                self._reserve(ref, _gated(op, ref), _rows_together(op, ref))

    def upload(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> None:
        """Reserve and upload the weights of `plan`; `progress` hears (weights done, weights in all).

        Raises DoesNotFit, before anything is read.
        """
        self.reserve(plan)
        named = [(op, ref) for op in plan.ops for ref in op.weights]
        filled: set[str] = set()
        for done, (op, ref) in enumerate(named):
            weight = self.placed[ref]
            if weight.name not in filled:
                filled.add(weight.name)
                self._fill(weight, self._store.load(ref), _gated(op, ref))
            if progress is not None:
                progress(done + 1, len(named))
        self._pool.flush()

    def _reserve(self, ref: WeightRef, gated: bool, together: int) -> None:
        name = "+".join(f"{w.tensor}[{w.first_row}:{w.first_row + w.rows}]" for w in self._store.storage(ref))
        tied = next((weight for weight in self.placed.values() if weight.name == name), None)
        if tied is not None:
            self.placed[ref] = tied
            return
        shared = common_format(ref.sources, self._store.formats)
        assert shared is not None, "fusion stacks only weights that share a format"
        weight = plan_parts(name, FORMATS[shared], ref.rows, ref.columns, gated, self._max_binding, together)
        self.placed[ref] = weight
        row_words = weight.format.row_words(ref.columns)
        for index, part in enumerate(weight.parts):
            for binding, plane in zip(weight.bindings(index), weight.planes, strict=True):
                self.buffers[binding] = self._pool.create("weights", part.rows * row_words[plane] * 4, binding.name)
        held = self.bytes_by_format.get(shared, 0)
        self.bytes_by_format[shared] = held + ref.rows * sum(row_words.values()) * 4

    def _fill(self, weight: DeviceWeight, tensor: PlanarTensor, gated: bool) -> None:
        for index, part in enumerate(weight.parts):
            piece = part_planes(tensor, part, gated)
            for binding, plane in zip(weight.bindings(index), weight.planes, strict=True):
                self._pool.upload(self.buffers[binding], piece[plane])


def plan_parts(
    name: str,
    form: PlanarFormat,
    rows: int,
    columns: int,
    gated: bool,
    max_binding: int,
    together: int = ROW_ALIGNMENT,
) -> DeviceWeight:
    """Where the rows of a weight go: in parts of a multiple of `together` rows.

    Of a gated weight (gate over up) each part holds matching rows of both. Raises DoesNotFit where not even `together`
    rows fit a binding.
    """
    row_bytes = max(form.row_words(columns).values()) * 4
    fold = 2 if gated else 1
    if rows * row_bytes <= max_binding:
        return DeviceWeight(name, form, columns, (WeightPart(0, rows),))
    step = max_binding // (row_bytes * fold) // together * together
    if step == 0:
        raise DoesNotFit(
            f"{name}: {together * fold} rows of {row_bytes:,} bytes do not fit the device's bindings of "
            f"{max_binding:,}; use a smaller model or --device cpu"
        )
    matching = rows // fold
    parts = tuple(
        WeightPart(first * fold, (min(first + step, matching) - first) * fold) for first in range(0, matching, step)
    )
    return DeviceWeight(name, form, columns, parts)


def device_formats(stored: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """The format that each weight of `plan` has on the device, by canonical name; stacked weights share one.

    `stored` has each weight's format in its file.
    """
    formats = dict(stored)
    for op in plan.ops:
        for ref in op.weights:
            shared = common_format(ref.sources, stored)
            assert shared is not None
            formats |= dict.fromkeys(ref.sources, shared)
    return formats


def _gated(op: Op, ref: WeightRef) -> bool:
    gates = isinstance(op.attributes, Matmul | ExpertMatmul) and op.attributes.activation is not None
    return gates and ref == op.weights[0]


def _rows_together(op: Op, ref: WeightRef) -> int:
    """Rows (of one matrix) that no part may split: those of an expert."""
    if not isinstance(op.attributes, ExpertMatmul):
        return ROW_ALIGNMENT
    return ref.rows // (op.attributes.experts * (2 if op.attributes.activation else 1))


def part_planes(tensor: PlanarTensor, part: WeightPart, gated: bool) -> dict[str, np.ndarray]:
    """The planes of one part; of a gated weight the matching rows of gate and up, stacked."""
    if not gated:
        return dict(tensor.slice_rows(part.first_row, part.first_row + part.rows).planes)
    first, count = part.first_row // 2, part.rows // 2
    gate = tensor.slice_rows(first, first + count).planes
    up = tensor.slice_rows(tensor.rows // 2 + first, tensor.rows // 2 + first + count).planes
    return {plane: np.concatenate([gate[plane], up[plane]]) for plane in gate}
