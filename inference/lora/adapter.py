"""LoRA adapters: what one adds to a model's projections, whichever file it came from (arXiv:2106.09685).

Dimension letters: R rank, I columns of a projection, O its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inference.errors import BadAdapter
from inference.formats.planar import FORMATS, from_ggml
from inference.formats.tensors import TensorFile
from inference.models.config import ModelConfig, StoredWeight
from inference.plan.build import build
from inference.plan.ops import Matmul

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to one projection at strength 1: b @ a, with the adapter's own scale in b.

    a is float32 (R, I), b float32 (O, R).
    """

    a: Matrix
    b: Matrix

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class Adapter:
    """An adapter read and checked against a model. `parts` is by canonical projection ("layers.0.attention.q")."""

    name: str
    path: Path
    parts: Mapping[str, LowRank]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur, rising."""
        return tuple(sorted({part.rank for part in self.parts.values()}))

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices in float32."""
        return sum(part.a.nbytes + part.b.nbytes for part in self.parts.values())


@dataclass(frozen=True)
class FoundPair:
    """The two matrices that a file holds for one tensor of the model, by the tensor's name without its ending."""

    module: str
    a: str
    b: str
    scale: float


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(rows, columns) of every projection that an adapter can act on, by its canonical name."""
    ops = build(config, 1, "last").ops
    refs = [op.weights[0] for op in ops if isinstance(op.attributes, Matmul)]
    return {ref.name: (ref.rows, ref.columns) for ref in refs}


def check_pair(file: TensorFile, pair: FoundPair, rank: int | None) -> LowRank:
    """Read the matrices of a pair and check them against each other and the rank that is announced.

    Raises BadAdapter, naming the tensor, what was found and what was expected.
    """
    a, b = _matrix(file, pair.a), _matrix(file, pair.b)
    rank = len(a) if rank is None else rank
    for name, found, expected in ((pair.a, a, (rank, a.shape[1])), (pair.b, b, (b.shape[0], rank))):
        if found.shape != expected:
            raise BadAdapter(
                f"{file.path}: tensor {name} has shape {found.shape}, expected {expected} for a rank of {rank}"
            )
    return LowRank(a, b * np.float32(pair.scale))


def assign(
    config: ModelConfig,
    stored: Mapping[str, StoredWeight],
    pairs: Iterator[tuple[FoundPair, LowRank]],
    path: Path,
) -> dict[str, LowRank]:
    """The pairs by canonical projection; one tensor that holds several projections is divided among them.

    `stored` says what the model's tensors are called in files of the adapter's kind. Raises BadAdapter for a tensor
    that the model does not have, or that has another shape there.
    """
    shapes = projection_shapes(config)
    by_module: dict[str, list[str]] = {}
    for canonical in shapes:
        by_module.setdefault(stored[canonical].tensor.removesuffix(".weight"), []).append(canonical)
    result: dict[str, LowRank] = {}
    for pair, matrices in pairs:
        targets = by_module.get(pair.module)
        if targets is None:
            raise BadAdapter(
                f"{path}: tensor {pair.a} is for {pair.module}, which is no projection of the model; "
                "use an adapter that was made for this model"
            )
        rows, columns = sum(shapes[target][0] for target in targets), shapes[targets[0]][1]
        if (len(matrices.b), matrices.a.shape[1]) != (rows, columns):
            raise BadAdapter(
                f"{path}: tensors {pair.a} and {pair.b} are for a matrix of {len(matrices.b)} x {matrices.a.shape[1]}, "
                f"expected {rows} x {columns}; use an adapter that was made for this model"
            )
        for target in targets:
            first, count = stored[target].first_row, shapes[target][0]
            result[target] = LowRank(matrices.a, np.ascontiguousarray(matrices.b[first : first + count]))
    if not result:
        raise BadAdapter(f"{path}: holds no LoRA matrices; expected tensors named ...lora_A and ...lora_B")
    return result


def pair_rows(config: ModelConfig, parts: Mapping[str, LowRank], to_pairs: bool) -> dict[str, LowRank]:
    """The same adapter with the rows of q and k ordered as the other convention of rotary embedding wants them.

    `to_pairs` brings rows for rotated halves into the order for adjacent pairs, as converters to GGUF do with the
    weights of some families; without it, back.
    """
    result = dict(parts)
    for layer, layer_config in enumerate(config.layers):
        for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            canonical = f"layers.{layer}.attention.{name}"
            if canonical in parts:
                order = _pair_order(heads, config.head_dim, layer_config.rope.rotary_dim)
                rows = order if to_pairs else np.argsort(order)
                result[canonical] = replace(parts[canonical], b=np.ascontiguousarray(parts[canonical].b[rows]))
    return result


def _pair_order(heads: int, head_dim: int, rotary_dim: int) -> npt.NDArray[np.int64]:
    """Which row of the halves' order stands at each place of the pairs' order."""
    half = rotary_dim // 2
    turned = np.stack([np.arange(half), np.arange(half) + half], axis=1).reshape(-1)  # 0, half, 1, half + 1 ...
    one_head = np.concatenate([turned, np.arange(rotary_dim, head_dim)])
    return (np.arange(heads)[:, None] * head_dim + one_head).reshape(-1)


def _matrix(file: TensorFile, name: str) -> Matrix:
    info = file.tensors[name]
    if info.type.lower() not in FORMATS or len(info.shape) != 2:
        raise BadAdapter(
            f"{file.path}: tensor {name} is {info.type} of shape {info.shape}, expected a matrix of "
            f"{', '.join(form.upper() for form in FORMATS)}"
        )
    return from_ggml(info.type, file.data(name), *info.shape).dequantize()
