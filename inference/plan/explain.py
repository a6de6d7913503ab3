"""The plan as a table: what the dtype panel, the kernel panel and `chat doctor --plan` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.kernels.base import Decision
from inference.plan.fuse import common_format
from inference.plan.ops import Attention, Copy, Device, DType, Embed, ExpertMatmul, KvAppend, Op, Plan, Route
from inference.plan.place import moved_bytes


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
    moved_bytes: int = 0
    """Of a copy between devices: what it moves for each token."""


def explain(
    plan: Plan,
    decisions: Sequence[tuple[Decision, int]],
    formats: Mapping[Device, Mapping[str, str]],
) -> list[PlanRow]:
    """One row an op of a placed plan, each with its kernel and the number of its dispatches.

    `formats` gives each weight's storage as it lies on a device.
    """
    rows = []
    for index, (op, (decision, dispatches)) in enumerate(zip(plan.ops, decisions, strict=True)):
        assert op.device is not None, "only placed plans are explained"
        stored = formats[op.device]
        rows.append(
            PlanRow(
                index=index,
                layer=op.layer,
                kind=op.kind,
                name=op.name,
                input_dtype=_input_dtype(op, plan),
                weight=", ".join(dict.fromkeys(common_format(ref.sources, stored) or "" for ref in op.weights)),
                accumulate="" if isinstance(op.attributes, Embed | Copy) else decision.accumulate,
                output_dtype=_output_dtype(op, plan),
                shape=_shape(op),
                device=op.device,
                variant=decision.variant,
                reason=decision.reason,
                rejected=decision.rejected,
                notes=op.notes,
                dispatches=dispatches,
                moved_bytes=moved_bytes(op),
            )
        )
    return rows


def moved_per_token(rows: Sequence[PlanRow]) -> int:
    """Bytes that a step moves between devices for each of its tokens."""
    return sum(row.moved_bytes for row in rows)


def _input_dtype(op: Op, plan: Plan) -> str:
    if op.kind == "embed":
        return "u32"
    dtypes = [tensor.dtype for tensor in op.inputs]
    if isinstance(op.attributes, Attention):
        dtypes.append(_kv_dtype(op, plan))
    return ", ".join(dict.fromkeys(dtypes))


def _output_dtype(op: Op, plan: Plan) -> str:
    if op.kind == "sample":
        return "u32"
    if isinstance(op.attributes, KvAppend) and (cache := _kv_dtype(op, plan)) != op.output.dtype:
        return f"{op.output.dtype}, cache {cache}"
    return op.output.dtype


def _kv_dtype(op: Op, plan: Plan) -> DType:
    return "f32" if op.device == "cpu" else plan.kv_dtype


def _shape(op: Op) -> str:
    """ "576 x 960" for weights by columns and rows, "9/3 heads x 64" for attention, "2 of 4 x 64 x 32" for experts by
    columns and rows, else the output's columns."""
    if isinstance(op.attributes, Attention):
        a = op.attributes
        window = "" if a.window is None else f", window {a.window}"
        return f"{a.num_heads}/{a.num_kv_heads} heads x {a.head_dim}{window}"
    if isinstance(op.attributes, Route):
        return f"{op.attributes.chosen} of {op.attributes.experts}"
    if isinstance(op.attributes, ExpertMatmul):
        experts, weight = op.attributes.experts, op.weights[0]
        return f"{op.attributes.chosen} of {experts} x {weight.columns} x {weight.rows // experts}"
    if op.weights and op.weights[0].rows > 1:
        return f"{op.weights[0].columns} x {op.weights[0].rows}"
    return str(op.output.columns)
