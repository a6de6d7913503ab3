"""The plan as a table: what the dtype panel, the kernel panel and `chat doctor --plan` show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanRow:
    """One operation of the plan, as it runs.

    `layer` is None for operations outside the layers (embedding, head, sampling). `weight` is the
    storage format of its weights ("" without weights). `rejected` pairs each kernel variant that was
    passed over with the reason; `notes` holds reasons of fusions that were applied or could not be.
    """

    index: int
    layer: int | None
    kind: str
    name: str
    input_dtype: str
    weight: str
    accumulate: str
    output_dtype: str
    shape: str
    device: str
    variant: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    dispatches: int = 1
