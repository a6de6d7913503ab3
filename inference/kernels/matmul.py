"""Matmul on WebGPU: few rows (GEMV: x in fixed point, or sums by subgroups or in workgroup memory), many rows (tiled).

A weight in several parts (a binding's size is limited) takes one dispatch a part.
"""

from __future__ import annotations

from inference.kernels.base import Decision, Variant, select
from inference.kernels.dispatch import (
    STATE,
    Constant,
    DeviceWeight,
    Dispatch,
    KernelContext,
    WeightPart,
    activation_constants,
    grid_for,
    tensor,
)
from inference.kernels.matmul_shapes import (
    FEW_OUTPUTS,
    LONG_ROWS,
    MANY_OUTPUTS,
    MOST_GEMV_ROWS,
    TILES,
    WIDE_UNIT,
    GemvShape,
    MatmulRequest,
    Tile,
    gemv_shape,
    packed_shape,
    tile_for,
)
from inference.plan.ops import Matmul, Op

FEW_ROWS = 32
"""Up to so many, tiles would be too few to fill a device: reading the weights several times is faster."""

BYTE_PRODUCTS = ("Vulkan", "D3D12")
"""Backends on which dot4I8Packed is one instruction of most GPUs."""

LITTLE = 5 * 2**20
"""With fewer weights than this, converting x to fixed point takes longer than it saves."""


def gemv_unmet(request: MatmulRequest) -> str | None:
    """What a GEMV lacks, None where nothing."""
    if request.columns % 8:
        return f"{request.columns} columns are not a multiple of 8"
    return None


def gemv_subgroup_unmet(request: MatmulRequest) -> str | None:
    """What a GEMV by subgroups lacks, None where nothing."""
    return gemv_unmet(request) or (None if request.caps.subgroup_size else request.caps.subgroup_reason)


def _packed_unmet(request: MatmulRequest) -> str | None:
    if request.format.dense or request.format.table:
        return f"codes of {request.format.name} are no integers to multiply with"
    if request.columns % WIDE_UNIT:
        return f"{request.columns} columns are not a multiple of {WIDE_UNIT}"
    shape, caps = packed_shape(request, bool(request.caps.subgroup_size)), request.caps
    if (invocations := shape.lanes * shape.lane_groups) > caps.max_invocations:
        return f"it needs {invocations} invocations a workgroup, the device has {caps.max_invocations}"
    needed, limit = shape.storage(request), caps.max_workgroup_storage
    return f"it needs {needed} bytes of workgroup memory, the device has {limit}" if needed > limit else None


def _packed_unwise(request: MatmulRequest) -> str | None:
    if request.caps.software or request.caps.backend not in BYTE_PRODUCTS:
        return "the device has no instruction that multiplies four bytes"
    if request.columns < LONG_ROWS or request.columns * request.outputs < LITTLE:
        return f"with {request.outputs} x {request.columns} weights, converting x takes longer than it saves"
    if request.rows > FEW_ROWS:
        return f"{request.rows} rows would read the weights {-(-request.rows // 2)} times"
    return None


def _gemv_unwise(request: MatmulRequest) -> str | None:
    if request.rows == 1 or (request.caps.software and request.rows <= MOST_GEMV_ROWS):
        return None
    if request.rows <= MOST_GEMV_ROWS:
        many = request.outputs >= MANY_OUTPUTS
        return f"tiles of {request.rows} rows and {request.outputs} columns fill the device" if many else None
    if request.rows <= FEW_ROWS and request.outputs <= FEW_OUTPUTS and not request.caps.software:
        return None
    return f"{request.rows} rows would read the weights {-(-request.rows // MOST_GEMV_ROWS)} times"


def _tiled_unmet(request: MatmulRequest) -> str | None:
    if request.columns % 8:
        return f"{request.columns} columns are not a multiple of 8"
    if tile_for(request) is None:
        smallest = TILES[-1].storage(request.gated, request.norm)
        return (
            f"its tiles need {smallest} bytes of workgroup memory, the device has {request.caps.max_workgroup_storage}"
        )
    return None


VARIANTS: tuple[Variant[MatmulRequest], ...] = (
    Variant(
        "gemv_packed",
        "few rows; x in 16-bit fixed point, four products of bytes an instruction",
        _packed_unmet,
        _packed_unwise,
        "i32, f32",
    ),
    Variant("gemv_subgroup", "few rows; lanes of a subgroup share rows of weights", gemv_subgroup_unmet, _gemv_unwise),
    Variant("gemv_workgroup", "few rows; sums meet in workgroup memory", gemv_unmet, _gemv_unwise),
    Variant("tiled", "many rows share each tile of weights in workgroup memory", _tiled_unmet),
)
GEMV_VARIANTS = ("gemv_packed", "gemv_subgroup", "gemv_workgroup")


def choose(op: Op, context: KernelContext) -> Decision:
    """The variant for a matmul or lm_head op. Raises KernelUnavailable where a forced variant cannot run."""
    return select(VARIANTS, _request(op, context), context.preferences)


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """One dispatch for each part of the weight."""
    made = []
    for index in range(len(context.weights[op.weights[0]].parts)):
        if decision.variant == "tiled":
            tile = tile_for(_request(op, context))
            assert tile is not None
            made.append(tiled_dispatch(op, context, index, tile))
        else:
            shape = part_shape(op, decision, context, index)
            made.append(gemv_dispatch(op, context, index, shape, sums_in_subgroups(decision, context)))
    return tuple(made)


def part_shape(op: Op, decision: Decision, context: KernelContext, index: int) -> GemvShape:
    """How a GEMV of part `index` of the weight is divided."""
    request, subgroup = _request(op, context), sums_in_subgroups(decision, context)
    if decision.variant == "gemv_packed":
        return packed_shape(request, subgroup)
    return gemv_shape(request, subgroup, _out_rows(request, context.weights[op.weights[0]].parts[index]))


def sums_in_subgroups(decision: Decision, context: KernelContext) -> bool:
    """Whether the lanes of a GEMV add up by subgroups, or else in workgroup memory."""
    return decision.variant != "gemv_workgroup" and bool(context.caps.subgroup_size)


def _request(op: Op, context: KernelContext) -> MatmulRequest:
    matmul = _attributes(op)
    gated, norm = matmul.activation is not None, matmul.norm_eps is not None
    output = op.output
    return MatmulRequest(
        rows=output.rows,
        columns=op.weights[0].columns,
        outputs=output.columns,
        gated=gated,
        norm=norm,
        format=context.weights[op.weights[0]].format,
        caps=context.caps,
    )


def _attributes(op: Op) -> Matmul:
    assert isinstance(op.attributes, Matmul)
    return op.attributes


def _out_rows(request: MatmulRequest, part: WeightPart) -> int:
    """How many outputs a part of the weight makes; gate and up rows make one together."""
    return part.rows // 2 if request.gated else part.rows


def _shared_constants(op: Op, weight: DeviceWeight, part: WeightPart) -> dict[str, Constant]:
    matmul = _attributes(op)
    gated = matmul.activation is not None
    return {
        **weight.constants(),
        "PLANES": len(weight.planes),
        "X_TYPE": op.inputs[0].dtype,
        "Y_TYPE": op.output.dtype,
        "BIAS": matmul.bias,
        "LORA_RANK": op.inputs[1].columns if matmul.lora else 0,
        "UP_FIRST": op.output.columns,
        "SCALE": float(matmul.scale),
        "NORM": matmul.norm_eps is not None,
        "NORM_EPS": matmul.norm_eps or 0.0,
        "RESIDUAL": matmul.residual,
        "GATED": gated,
        **activation_constants(matmul.activation),
        "OUT_ROWS": part.rows // 2 if gated else part.rows,
        "Y_COLUMNS": op.output.columns,
        "FIRST_ROW": part.first_row // 2 if gated else part.first_row,
    }


def gemv_dispatch(op: Op, context: KernelContext, index: int, shape: GemvShape, subgroup: bool) -> Dispatch:
    """Part `index` of the weight, divided as `shape` says; sums meet in subgroups or in workgroup memory."""
    weight = context.weights[op.weights[0]]
    x_rows = min(op.output.rows, shape.x_rows)
    constants = _shared_constants(op, weight, weight.parts[index]) | shape.constants()
    constants |= {"X_ROWS": x_rows, "REDUCE": "subgroup" if subgroup else "workgroup"}
    constants |= {"APPEND": False, "KV_TYPE": ""}
    bindings = (*weight.bindings(index), *_operands(op, context), tensor(op.output))
    out_rows = _out_rows(_request(op, context), weight.parts[index])
    x, y, _ = grid_for(shape.workgroups(out_rows), context.caps)
    grid = (x, y, -(-op.output.rows // x_rows))
    return Dispatch("matmul/gemv.wgsl", constants, (*bindings, STATE) if x_rows > 1 else bindings, grid)


def tiled_dispatch(op: Op, context: KernelContext, index: int, tile: Tile) -> Dispatch:
    """Part `index` of the weight, in such tiles."""
    weight = context.weights[op.weights[0]]
    constants = _shared_constants(op, weight, weight.parts[index]) | tile.constants()
    bindings = (*weight.bindings(index), *_operands(op, context), tensor(op.output), STATE)
    out_rows = _out_rows(_request(op, context), weight.parts[index])
    return Dispatch("matmul/tiled.wgsl", constants, bindings, tile.grid(op.output.rows, out_rows))


def _operands(op: Op, context: KernelContext) -> tuple:
    """x [, bias] [, B] [, norm weight] [, low rank] [, residual], in the order of the shaders' bindings."""
    vectors = tuple(context.weights[ref].bindings(0)[0] for ref in op.weights[1:])
    return (tensor(op.inputs[0]), *vectors, *(tensor(extra) for extra in op.inputs[1:]))
