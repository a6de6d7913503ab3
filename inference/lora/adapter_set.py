"""The adapters in use together, each with its strength, as the stacked matrices that a plan names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inference.formats.planar import PlanarTensor, from_dense
from inference.lora.adapter import Adapter, LowRank, projection_shapes
from inference.models.config import ModelConfig
from inference.plan.ops import WeightRef

A, B = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class AppliedAdapter:
    """An adapter and how strongly it acts: 1 as trained, 0 not at all, below 0 against its direction."""

    adapter: Adapter
    strength: float = 1.0


@dataclass(frozen=True)
class AdapterSet:
    """Adapters of one model. Their matrices on one projection lie one after another along the rank."""

    config: ModelConfig
    applied: tuple[AppliedAdapter, ...] = ()

    def same_as(self, other: AdapterSet) -> bool:
        """Whether both add exactly the same, so that what one computed holds for the other."""
        return [(id(each.adapter), each.strength) for each in self.applied] == [
            (id(each.adapter), each.strength) for each in other.applied
        ]

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The rank of all adapters together, by the projection that they act on."""
        ranks: dict[str, int] = {}
        for each in self.applied:
            for projection, part in each.adapter.parts.items():
                ranks[projection] = ranks.get(projection, 0) + part.rank
        return ranks

    @cached_property
    def formats(self) -> dict[str, str]:
        """The storage format of every matrix that a plan may name."""
        return {projection + side: "f32" for projection in self._shapes for side in (A, B)} if self.applied else {}

    def load(self, ref: WeightRef) -> PlanarTensor:
        """The matrix that a plan names, f32 (rows, columns): all A stacked by rows, or all B block by block.

        Strengths are in the B matrices, so that a change of strength changes nothing else.
        """
        blocks = [self._block(source.removesuffix(A).removesuffix(B), source.endswith(A)) for source in ref.sources]
        return from_dense(np.concatenate(blocks) if ref.sources[0].endswith(A) else _block_diagonal(blocks))

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, int]]:
        return projection_shapes(self.config)

    def _block(self, projection: str, is_a: bool) -> np.ndarray:
        rows, columns = self._shapes[projection]
        found: list[tuple[LowRank, float]] = [
            (each.adapter.parts[projection], each.strength) for each in self.applied if projection in each.adapter.parts
        ]
        if is_a:
            return np.concatenate([np.zeros((0, columns), np.float32), *(part.a for part, _ in found)])
        scaled = [part.b * np.float32(strength) for part, strength in found]
        return np.concatenate([np.zeros((rows, 0), np.float32), *scaled], axis=1)


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Blocks (rows, rank) along the diagonal of one matrix, zeros elsewhere."""
    result = np.zeros((sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks)), np.float32)
    row = column = 0
    for block in blocks:
        result[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return result
