"""The operations that have one kernel each: embedding, norm, KV append, elementwise, last row."""

from __future__ import annotations

from inference.errors import KernelUnavailable
from inference.kernels.base import Decision
from inference.kernels.dispatch import (
    STATE,
    Binding,
    Constant,
    Dispatch,
    KernelContext,
    activation_constants,
    grid_for,
    layer_of,
    tensor,
)
from inference.plan.ops import (
    ActivationGate,
    Add,
    Copy,
    Embed,
    KvAppend,
    LastRow,
    Op,
    RmsNorm,
    Softcap,
    TensorRef,
)


def choose(op: Op, context: KernelContext) -> Decision:
    """The one kernel of this kind of op; raises KernelUnavailable where WebGPU has none."""
    match op.attributes:
        case Embed():
            return Decision("lookup", "one workgroup a token")
        case RmsNorm():
            return Decision("workgroup", "one workgroup a norm, summed in workgroup memory")
        case KvAppend(rope=rope) if rope is not None:
            layout = context.layouts[layer_of(op)].name
            return Decision(f"append_{layout}", "one workgroup a head rotates and stores it")
        case Add() | ActivationGate() | Softcap() | LastRow():
            return Decision("elementwise", "one invocation an element")
        case Copy():
            return Decision("transfer", "through the queue, once a step: what the other device reads next")
        case _:
            raise KernelUnavailable(f"op {op.name} ({op.kind}) has no WebGPU kernel in this form; use --device cpu")


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """The dispatches of one op."""
    match op.attributes:
        case Embed(scale):
            return _embed(op, scale, context)
        case RmsNorm() as norm:
            return (_rmsnorm(op, norm, context),)
        case KvAppend() as append:
            return (*context.layouts[layer_of(op)].before_append, _append(op, append, context))
        case Add(scale):
            return (_binary(op, {"OPERATION": "add", "ACTIVATION": "", "SCALE": float(scale)}),)
        case ActivationGate(activation):
            return (_binary(op, {"OPERATION": "activation_gate", **activation_constants(activation), "SCALE": 1.0}),)
        case Softcap(cap):
            count = op.output.rows * op.output.columns
            constants: dict[str, Constant] = {"COUNT": count, "CAP": float(cap)}
            grid = grid_for(-(-count // 256), context.caps)
            return (Dispatch("elementwise/softcap.wgsl", constants, (tensor(op.inputs[0]), tensor(op.output)), grid),)
        case Copy():
            return ()
        case LastRow():
            constants = {"COLUMNS": op.output.columns, "X_TYPE": op.output.dtype}
            bindings = (tensor(op.inputs[0]), tensor(op.output), STATE)
            grid = (-(-op.output.columns // 64), 1, 1)
            return (Dispatch("elementwise/last_row.wgsl", constants, bindings, grid),)
        case _:
            raise AssertionError(f"no dispatches for {op.kind}")


def _embed(op: Op, scale: float, context: KernelContext) -> tuple[Dispatch, ...]:
    table = context.weights[op.weights[0]]
    result = []
    for index, part in enumerate(table.parts):
        constants: dict[str, Constant] = {
            **table.constants(),
            "PLANES": len(table.planes),
            "Y_TYPE": op.output.dtype,
            "SCALE": float(scale),
            "FIRST_ROW": part.first_row,
            "OUT_ROWS": part.rows,
        }
        bindings = (*table.bindings(index), Binding("tokens"), tensor(op.output), STATE)
        result.append(Dispatch("embed.wgsl", constants, bindings, (op.output.rows, 1, 1)))
    return tuple(result)


def _rmsnorm(op: Op, norm: RmsNorm, context: KernelContext) -> Dispatch:
    groups = op.output.columns // norm.group
    constants: dict[str, Constant] = {
        **_source("X", op.inputs[0]),
        "X_TYPE": op.inputs[0].dtype,
        "Y_TYPE": op.output.dtype,
        "GROUP": norm.group,
        "GROUPS": groups,
        "EPS": norm.eps,
        "RESIDUAL": norm.residual,
    }
    weight = context.weights[op.weights[0]].bindings(0)[0]
    residual = tuple(tensor(extra) for extra in op.inputs[1:])
    bindings = (tensor(op.inputs[0]), weight, *residual, tensor(op.output), STATE)
    return Dispatch("norm/rmsnorm.wgsl", constants, bindings, (groups, op.output.rows, 1))


def _append(op: Op, append: KvAppend, context: KernelContext) -> Dispatch:
    q, k, v = op.inputs
    assert append.rope is not None
    layout = context.layouts[layer_of(op)]
    constants: dict[str, Constant] = {
        **_source("Q", q),
        **_source("K", k),
        **_source("V", v),
        "X_TYPE": op.output.dtype,
        "KV_TYPE": context.kv_dtype,
        **layout.writing(),
        "NUM_HEADS": append.num_heads,
        "NUM_KV_HEADS": append.num_kv_heads,
        "HEAD_DIM": append.head_dim,
        "HALF": append.rope.rotary_dim // 2,
        "INTERLEAVED": append.rope.interleaved,
        "QK_NORM": append.qk_norm_eps is not None,
        "QK_NORM_EPS": append.qk_norm_eps or 0.0,
        "SIZE": 64,
        "BATCH": context.batch,
    }
    norms = tuple(context.weights[ref].bindings(0)[0] for ref in op.weights)
    rope = Binding("rope", str(op.layer))
    bindings = (tensor(q), tensor(k), tensor(v), *norms, rope, tensor(op.output), STATE, *layout.bindings)
    return Dispatch(
        layout.append,
        constants,
        bindings,
        (append.num_heads + 2 * append.num_kv_heads, op.output.rows, 1),
    )


def _binary(op: Op, operation: dict[str, Constant]) -> Dispatch:
    a, b = op.inputs
    constants: dict[str, Constant] = {
        **operation,
        **_source("A", a),
        **_source("B", b),
        "COLUMNS": op.output.columns,
        "A_TYPE": a.dtype,
        "B_TYPE": b.dtype,
        "Y_TYPE": op.output.dtype,
    }
    grid = (-(-op.output.columns // 64), op.output.rows, 1)
    return Dispatch("elementwise/binary.wgsl", constants, (tensor(a), tensor(b), tensor(op.output), STATE), grid)


def _source(prefix: str, ref: TensorRef) -> dict[str, Constant]:
    """Where a possibly viewed input lies in its buffer, in elements."""
    return {f"{prefix}_STRIDE": ref.storage.columns, f"{prefix}_FIRST": ref.first_column}
