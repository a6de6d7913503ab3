"""From a model file to the weights that a plan names: checked against the config, stacked, widened where needed."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

import numpy as np

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.planar import FORMATS, PlanarTensor, concat_rows, from_dense, from_ggml, widen
from inference.formats.quantize import quantize
from inference.formats.tensors import TensorFile, TensorInfo
from inference.models.config import ModelConfig, StoredWeight
from inference.plan.fuse import common_format
from inference.plan.ops import Plan, WeightRef

Precision = Literal["auto", "q8", "q4", "f16"]
"""What matrices that the file holds as floats become at load; "auto" leaves them as they are."""

PRECISION_FORMATS: Mapping[Precision, str] = {"q8": "q8_0", "q4": "q4_1", "f16": "f16"}

KEPT = ".router"
"""Matrices that `precision` leaves alone: small, and a rounding may make the difference between two experts."""


class WeightStore:
    """The weights of one model file under their canonical names. Reads nothing until a weight is asked for.

    Vectors (norms and biases) are f32 whatever the file holds; matrices keep the file's format, but for what
    `precision` asks. `notices` says where it could not be had.
    """

    def __init__(self, file: TensorFile, config: ModelConfig, precision: Precision = "auto") -> None:
        self._file = file
        self._stored = stored = config.weights
        held = {canonical: _format(file, each) for canonical, each in stored.items() if each.tensors[0] in file.tensors}
        wanted = PRECISION_FORMATS.get(precision)
        self.formats = {
            name: wanted
            if wanted and not name.endswith(KEPT) and _convertible(file, stored[name], wanted)
            else format_name
            for name, format_name in held.items()
        }
        self.notices: tuple[str, ...] = ()
        if wanted and self.formats == held:
            self.notices = (f"--weights {precision} has no effect: {file.path.name} holds no matrices it applies to",)
        used = {tensor for each in stored.values() for tensor in each.tensors}
        self.unused = tuple(name for name in file.tensors if name not in used and name != "rope_freqs.weight")

    def check(self, plan: Plan) -> None:
        """Raises BadModelFile for the first weight of the plan that is missing or has another shape."""
        # A tensor that several weights share has the rows of all of them.
        rows: dict[str, int] = {}
        for w in self._stored.values():
            end = w.first_row // w.row_step * w.row_step + w.rows * w.row_step
            rows[w.tensor] = max(end, rows.get(w.tensor, 0))
        for op in plan.ops:
            for ref in op.weights:
                # Unfused plans name each weight alone.
                (source,) = ref.sources
                self._check(self._stored[source], rows, ref.columns)

    def storage(self, ref: WeightRef) -> tuple[StoredWeight, ...]:
        """Where the file holds a weight: equal for an embedding and a head that are tied."""
        return tuple(self._stored[source] for source in ref.sources)

    def load(self, ref: WeightRef) -> PlanarTensor:
        """The weight as (rows, columns) in its planar format; stacked sources share their common format."""
        shared = common_format(ref.sources, self.formats)
        assert shared is not None, "fusion stacks only weights that share a format"
        return concat_rows([self._load(source, shared, ref.columns) for source in ref.sources])

    def _load(self, source: str, format_name: str, columns: int) -> PlanarTensor:
        stored = self._stored[source]
        if stored.vector:
            info, data = self._file.tensors[stored.tensor], self._file.data(stored.tensor)
            # (1, columns) for a norm, (rows, 1) for a bias, which may be a part of a longer one.
            vector = from_ggml(info.type, data, 1, prod(info.shape)).dequantize().reshape(-1, columns)
            return from_dense(_rows_of(vector, stored, stored.rows) + np.float32(stored.offset))
        parts = [self._load_rows(name, stored, columns, self.formats[source]) for name in stored.tensors]
        tensor = parts[0] if len(parts) == 1 else concat_rows(parts)
        return tensor if tensor.format.name == format_name else widen(tensor, format_name)

    def _load_rows(self, name: str, stored: StoredWeight, columns: int, format_name: str) -> PlanarTensor:
        """The rows of a weight that lie in one tensor, which may be a stack of matrices, quantised if asked for."""
        info = self._file.tensors[name]
        data = self._file.data(name)
        if _transposed(info, stored):
            words = data.view(f"u{info.nbytes // prod(info.shape)}").reshape(info.shape)
            data = np.ascontiguousarray(words.swapaxes(-1, -2)).view(np.uint8)
        rows = stored.rows // len(stored.tensors)
        # (rows of the tensor, bytes of a row)
        held = data.reshape(-1, info.nbytes * columns // prod(info.shape))
        tensor = from_ggml(info.type, _rows_of(held, stored, rows).reshape(-1), rows, columns)
        if not _convertible(self._file, stored, format_name):
            return tensor
        try:
            return quantize(tensor, format_name)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{self._file.path.name}: tensor {name} {error}") from None

    def _check(self, stored: StoredWeight, rows: Mapping[str, int], columns: int) -> None:
        where = self._file.path.name
        for name in stored.tensors:
            info = self._file.tensors.get(name)
            if info is None:
                raise BadModelFile(f"{where}: tensor {name} is missing; fetch the file again or convert it anew")
            expected = _shape(info, stored, rows[stored.tensor], columns)
            if info.shape != expected:
                raise BadModelFile(
                    f"{where}: tensor {name} has shape {info.shape}, expected {expected} from the model's config"
                )
            if info.type != (first := self._file.tensors[stored.tensors[0]]).type:
                raise BadModelFile(
                    f"{where}: tensor {name} has type {info.type}, expected {first.type} as {first.name} has"
                )


def _shape(info: TensorInfo, stored: StoredWeight, rows: int, columns: int) -> tuple[int, ...]:
    """What shape a tensor with `rows` rows, those of all experts and of all weights that share it, has to have."""
    rows //= stored.experts or 1
    one = (rows * columns,) if stored.vector else (columns, rows) if _transposed(info, stored) else (rows, columns)
    return (stored.experts, *one) if stored.experts and len(stored.tensors) == 1 else one


def _transposed(info: TensorInfo, stored: StoredWeight) -> bool:
    return stored.transposed and info.type.lower() in FORMATS and FORMATS[info.type.lower()].dense


def _rows_of(matrix: np.ndarray, stored: StoredWeight, rows: int) -> np.ndarray:
    """The `rows` rows of a tensor that belong to a weight."""
    return matrix[stored.first_row :: stored.row_step][:rows]


def _convertible(file: TensorFile, stored: StoredWeight, format_name: str) -> bool:
    """Whether `format_name` can be made of a weight at load: of a matrix of floats whose rows fill whole groups."""
    info = file.tensors[stored.tensors[0]]
    held, wanted = FORMATS[info.type.lower()], FORMATS[format_name]
    columns = info.shape[-2 if _transposed(info, stored) else -1]
    return not stored.vector and held.dense and held != wanted and columns % (wanted.group_size or 1) == 0


def _format(file: TensorFile, stored: StoredWeight) -> str:
    name = stored.tensors[0]
    info = file.tensors[name]
    if info.type.lower() not in FORMATS:
        known = ", ".join(known.upper() for known in FORMATS)
        raise UnsupportedModel(
            f"{file.path.name}: tensor {name} has type {info.type}, which is not supported (only {known}); "
            "use another quantisation of this model, such as Q8_0 or Q4_K_M"
        )
    return "f32" if stored.vector else info.type.lower()
