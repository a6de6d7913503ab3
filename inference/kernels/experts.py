"""Mixtures of experts on WebGPU: the choice of experts, and a matmul in which each row has its own matrices.

Rows are taken one at a time, as in a one-row matmul; the experts of a row are read from the device, so that nothing
waits for the host. A weight in several parts, each of whole experts, takes one dispatch a part.
"""

from __future__ import annotations

from inference.kernels.base import Decision, Variant, select
from inference.kernels.dispatch import STATE, Constant, Dispatch, KernelContext, activation_constants, tensor
from inference.kernels.matmul import gemv_subgroup_unmet, gemv_unmet
from inference.kernels.matmul_shapes import MatmulRequest, gemv_lanes
from inference.plan.ops import ExpertMatmul, Op, Route

VARIANTS: tuple[Variant[MatmulRequest], ...] = (
    Variant("experts_subgroup", "one row at a time; lanes of a subgroup share a row of weights", gemv_subgroup_unmet),
    Variant("experts_workgroup", "one row at a time; sums meet in workgroup memory", gemv_unmet),
)


def choose(op: Op, context: KernelContext) -> Decision:
    """The variant for a route or expert_matmul op. Raises KernelUnavailable where none can run."""
    match op.attributes:
        case ExpertMatmul(activation=activation):
            columns = op.weights[0].columns
            gated = activation is not None
            request = MatmulRequest(
                rows=op.output.rows,
                columns=columns,
                outputs=op.output.columns,
                gated=gated,
                norm=False,
                format=context.weights[op.weights[0]].format,
                caps=context.caps,
            )
            return select(VARIANTS, request, context.preferences)
        case _:
            return Decision("workgroup", "one workgroup a row finds the largest logits, one after another")


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """One dispatch for the choice; one for each part of the experts' weight."""
    match op.attributes:
        case Route() as route:
            return (_route(op, route),)
        case ExpertMatmul() as attributes:
            parts = context.weights[op.weights[0]].parts
            return tuple(_expert_matmul(op, attributes, decision, context, index) for index in range(len(parts)))
        case _:
            raise AssertionError(f"no dispatches for {op.kind}")


def _route(op: Op, route: Route) -> Dispatch:
    constants: dict[str, Constant] = {
        "EXPERTS": route.experts,
        "CHOSEN": route.chosen,
        "NORMALISED": route.normalised,
    }
    bindings = (tensor(op.inputs[0]), tensor(op.output), STATE)
    return Dispatch("moe/route.wgsl", constants, bindings, (op.output.rows, 1, 1))


def _expert_matmul(op: Op, a: ExpertMatmul, decision: Decision, context: KernelContext, index: int) -> Dispatch:
    x, route = op.inputs
    weight = context.weights[op.weights[0]]
    part = weight.parts[index]
    matrices = 2 if a.activation else 1
    out_rows = op.weights[0].rows // (matrices * a.experts)
    subgroup = decision.variant == "experts_subgroup"
    lanes, lane_groups = gemv_lanes(subgroup, context.caps)
    constants: dict[str, Constant] = {
        **weight.constants(),
        "PLANES": len(weight.planes),
        "X_TYPE": x.dtype,
        "Y_TYPE": op.output.dtype,
        "EXPERTS": a.experts,
        "CHOSEN": a.chosen,
        "FIRST_EXPERT": part.first_row // (matrices * out_rows),
        "PART_EXPERTS": part.rows // (matrices * out_rows),
        "OUT_ROWS": out_rows,
        "WEIGHTED": a.weighted,
        "BIAS": a.bias,
        "GATED": a.activation is not None,
        **activation_constants(a.activation),
        "LANES": lanes,
        "LANE_GROUPS": lane_groups,
        "REDUCE": "subgroup" if subgroup else "workgroup",
    }
    bias = tuple(context.weights[ref].bindings(0)[0] for ref in op.weights[1:])
    bindings = (*weight.bindings(index), tensor(x), tensor(route), *bias, tensor(op.output), STATE)
    grid = (-(-out_rows // lane_groups), 1 if a.weighted else a.chosen, op.output.rows)
    return Dispatch("moe/experts.wgsl", constants, bindings, grid)
