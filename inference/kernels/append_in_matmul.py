"""The append of keys and values by the matmul that makes them, in a step of one row: a dispatch a layer less.

In a small model a dispatch costs more by waiting for the one before than by its own work (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference.kernels.base import Decision, Variant, select
from inference.kernels.dispatch import STATE, Binding, Dispatch, KernelContext, layer_of, tensor
from inference.kernels.matmul import GEMV_VARIANTS, gemv_dispatch, part_shape, sums_in_subgroups
from inference.plan.ops import KvAppend, Matmul, Op

WRITES_BY_ELEMENT = "kv/append.wgsl"


@dataclass(frozen=True)
class AppendRequest:
    """An append, and the op that makes its inputs with what was decided about it."""

    matmul: Op
    decision: Decision
    append: Op
    context: KernelContext


def fold_appends(
    ops: Sequence[Op], decisions: Sequence[Decision], dispatches: Sequence[tuple[Dispatch, ...]], context: KernelContext
) -> tuple[list[Decision], list[tuple[Dispatch, ...]]]:
    """Decisions and dispatches with every append that can be done by its matmul done there.

    The append keeps its decision, with no dispatch of its own. Its output is written where the matmul stands, so it
    needs memory from there on. Raises KernelUnavailable where the fold is forced and cannot be.
    """
    decided, made = list(decisions), list(dispatches)
    if context.rows != 1 or context.batch:
        return decided, made
    makers = {op.output: index for index, op in enumerate(ops)}
    for index, op in enumerate(ops):
        maker = makers.get(op.inputs[0].storage) if op.kind == "kv_append" else None
        if maker is None:
            continue
        request = AppendRequest(ops[maker], decided[maker], op, context)
        apart = decided[index]
        variants = (VARIANT, Variant[AppendRequest](apart.variant, apart.reason, lambda _: None))
        decided[index] = select(variants, request, context.preferences)
        if decided[index].variant == VARIANT.name:
            made[maker], made[index] = (_dispatch(request),), ()
    return decided, made


def _unmet(request: AppendRequest) -> str | None:
    matmul, append, context = request.matmul, request.append, request.context
    attributes, layout = append.attributes, context.layouts[layer_of(append)]
    assert isinstance(attributes, KvAppend)
    if request.decision.variant not in GEMV_VARIANTS or not isinstance(matmul.attributes, Matmul):
        return f"{matmul.name} is no one-row matmul"
    if attributes.rope is None or any(ref.storage != matmul.output for ref in append.inputs):
        return "q, k and v do not come from one matmul"
    if attributes.qk_norm_eps is not None:
        return "the norms of q and k need whole heads"
    if matmul.attributes != replace(matmul.attributes, residual=False, activation=None, scale=1.0):
        return f"{matmul.name} does more to its output"
    if attributes.head_dim % 2:
        return f"heads of {attributes.head_dim} columns are not pairs"
    if layout.append != WRITES_BY_ELEMENT or layout.before_append:
        return f"a {layout.name} cache is appended to in its own way"
    if len(context.weights[matmul.weights[0]].parts) > 1:
        return f"the weights of {matmul.name} lie in several buffers"
    needed, limit = len(_dispatch(request).bindings), context.caps.max_storage_buffers
    return f"it needs {needed} buffers, the device binds {limit}" if needed > limit else None


def _dispatch(request: AppendRequest) -> Dispatch:
    """The matmul's GEMV with pairs of rows in a lane group, whose output is q."""
    matmul, append, context = request.matmul, request.append, request.context
    attributes, layout = append.attributes, context.layouts[layer_of(append)]
    assert isinstance(attributes, KvAppend) and attributes.rope is not None
    shape = part_shape(matmul, request.decision, context, 0)
    shape = replace(shape, rows=max(2, shape.rows))
    gemv = gemv_dispatch(matmul, context, 0, shape, sums_in_subgroups(request.decision, context))
    constants = {
        **gemv.constants,
        **layout.writing(),
        "APPEND": True,
        "BATCH": False,
        "KV_TYPE": context.kv_dtype,
        "NUM_HEADS": attributes.num_heads,
        "NUM_KV_HEADS": attributes.num_kv_heads,
        "HEAD_DIM": attributes.head_dim,
        "HALF": attributes.rope.rotary_dim // 2,
        "INTERLEAVED": attributes.rope.interleaved,
    }
    rope = Binding("rope", str(append.layer))
    bindings = (*gemv.bindings[:-1], tensor(append.output), rope, STATE, *layout.bindings)
    return Dispatch(gemv.shader, constants, bindings, gemv.grid)


VARIANT = Variant[AppendRequest](
    "append_in_matmul", "the matmul that makes q, k and v rotates and stores them: a dispatch less", _unmet
)
