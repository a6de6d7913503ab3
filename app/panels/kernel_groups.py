"""The plan by kernels: operations that are alike in all layers are one group, with what they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.op_times import OpTimes
    from inference.plan.explain import PlanRow


@dataclass(frozen=True)
class KernelGroup:
    """Operations alike but for their layer, in the plan's order; `seconds` is empty or has one for each."""

    rows: tuple[PlanRow, ...]
    seconds: tuple[float, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Their layers, none for what belongs to no layer."""
        return tuple(row.layer for row in self.rows if row.layer is not None)

    @property
    def dispatches(self) -> int:
        """Dispatches of all together."""
        return sum(row.dispatches for row in self.rows)

    def single(self, index: int) -> KernelGroup:
        """One of the operations by itself."""
        return KernelGroup(self.rows[index : index + 1], self.seconds[index : index + 1])


def group_kernels(rows: Sequence[PlanRow], times: OpTimes | None) -> list[KernelGroup]:
    """The groups of a plan, in the order of their first operations; `times` are of the same plan."""
    found: dict[PlanRow, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(replace(row, index=0, layer=None if row.layer is None else 0), []).append(place)
    return [
        KernelGroup(
            tuple(rows[place] for place in places), tuple(times.ops[place] for place in places) if times else ()
        )
        for places in found.values()
    ]
