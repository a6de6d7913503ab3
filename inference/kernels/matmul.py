"""Matmul on WebGPU: one row (GEMV, by subgroups or by workgroup memory) and many rows (tiled).

A weight in several parts (a binding's size is limited) takes one dispatch a part.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.gpu.device import DeviceCaps
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
from inference.plan.ops import Matmul, Op

GEMV_INVOCATIONS = 128
# Units of 8 columns that an invocation asks for together: enough to hide what one waits for memory.
GEMV_UNROLL = 4
WORKGROUP_LANES = 16


@dataclass(frozen=True)
class Tile:
    """Outputs of a workgroup (rows x columns), of one invocation, and the slice of K in workgroup memory."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    k: int = 32

    def storage(self, gated: bool, norm: bool) -> int:
        """Bytes of workgroup memory."""
        quads = self.k // 4 + 1
        matrices = self.rows + self.columns * (2 if gated else 1)
        return matrices * quads * 16 + (self.rows * self.k if norm else 0)


FILLING = 128
"""So many workgroups fill a large GPU: with fewer of a large tile, smaller ones are faster."""

# Largest first; a tile serves steps of at least its rows.
TILES = (Tile(64, 64, 4, 4), Tile(32, 32, 4, 2), Tile(8, 32, 2, 2))


@dataclass(frozen=True)
class MatmulRequest:
    """What selection looks at."""

    rows: int
    columns: int
    outputs: int
    gated: bool
    norm: bool
    caps: DeviceCaps


def gemv_unmet(request: MatmulRequest) -> str | None:
    if request.columns % 8:
        return f"{request.columns} columns are not a multiple of 8"
    return None


def gemv_subgroup_unmet(request: MatmulRequest) -> str | None:
    return gemv_unmet(request) or (None if request.caps.subgroup_size else request.caps.subgroup_reason)


def _tiled_unmet(request: MatmulRequest) -> str | None:
    if request.columns % 8:
        return f"{request.columns} columns are not a multiple of 8"
    if _tile(request) is None:
        smallest = TILES[-1].storage(request.gated, request.norm)
        return (
            f"its tiles need {smallest} bytes of workgroup memory, the device has {request.caps.max_workgroup_storage}"
        )
    return None


ONE_ROW_VARIANTS: tuple[Variant[MatmulRequest], ...] = (
    Variant("gemv_subgroup", "one row; lanes of a subgroup share a row of weights", gemv_subgroup_unmet),
    Variant("gemv_workgroup", "one row; sums meet in workgroup memory", gemv_unmet),
)
MANY_ROW_VARIANTS: tuple[Variant[MatmulRequest], ...] = (
    Variant("tiled", "many rows share each tile of weights in workgroup memory", _tiled_unmet),
)


def gemv_lanes(subgroup: bool, caps: DeviceCaps) -> tuple[int, int]:
    """Invocations that share a row of weights, and how many such groups a workgroup has."""
    lanes = min(caps.subgroup_size, 32) if subgroup else WORKGROUP_LANES
    return lanes, min(GEMV_INVOCATIONS, caps.max_invocations) // lanes


def choose(op: Op, context: KernelContext) -> Decision:
    """The variant for a matmul or lm_head op. Raises KernelUnavailable where a forced variant cannot run."""
    request = _request(op, context)
    variants = ONE_ROW_VARIANTS if request.rows == 1 else MANY_ROW_VARIANTS
    return select(variants, request, context.preferences)


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """One dispatch for each part of the weight."""
    weight = context.weights[op.weights[0]]
    request = _request(op, context)
    make = _tiled if decision.variant == "tiled" else _gemv
    return tuple(make(op, decision, context, request, weight, index) for index in range(len(weight.parts)))


def _request(op: Op, context: KernelContext) -> MatmulRequest:
    matmul = _attributes(op)
    gated, norm = matmul.activation is not None, matmul.norm_eps is not None
    output = op.output
    return MatmulRequest(output.rows, op.weights[0].columns, output.columns, gated, norm, context.caps)


def _attributes(op: Op) -> Matmul:
    assert isinstance(op.attributes, Matmul)
    return op.attributes


def _tile(request: MatmulRequest) -> Tile | None:
    fitting = [
        tile
        for tile in TILES
        if tile.rows <= request.rows and tile.storage(request.gated, request.norm) <= request.caps.max_workgroup_storage
    ]
    filling = (tile for tile in fitting if request.caps.software or _workgroups(tile, request) >= FILLING)
    return next(filling, fitting[-1] if fitting else None)


def _workgroups(tile: Tile, request: MatmulRequest) -> int:
    return -(-request.rows // tile.rows) * -(-request.outputs // tile.columns)


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
        "FIRST_ROW": part.first_row // 2 if gated else part.first_row,
    }


def _gemv(
    op: Op, decision: Decision, context: KernelContext, request: MatmulRequest, weight: DeviceWeight, index: int
) -> Dispatch:
    subgroup = decision.variant == "gemv_subgroup"
    lanes, lane_groups = gemv_lanes(subgroup, context.caps)
    constants = _shared_constants(op, weight, weight.parts[index])
    out_rows = _out_rows(request, weight.parts[index])
    # Rows that share their reads of x; fewer where there would not be enough workgroups to fill a device.
    rows = 2 if out_rows >= 1024 and not request.gated else 1
    constants |= {
        "LANES": lanes,
        "LANE_GROUPS": lane_groups,
        "ROWS": rows,
        "UNROLL": min(GEMV_UNROLL, -(-request.columns // 8 // lanes)),
        "REDUCE": "subgroup" if subgroup else "workgroup",
    }
    workgroups = -(-out_rows // (rows * lane_groups))
    bindings = (*weight.bindings(index), *_operands(op, context), tensor(op.output))
    return Dispatch("matmul/gemv.wgsl", constants, bindings, grid_for(workgroups, context.caps))


def _tiled(
    op: Op, decision: Decision, context: KernelContext, request: MatmulRequest, weight: DeviceWeight, index: int
) -> Dispatch:
    tile = _tile(request)
    assert tile is not None
    constants = _shared_constants(op, weight, weight.parts[index])
    constants |= {
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns,
        "THREAD_ROWS": tile.thread_rows,
        "THREAD_COLUMNS": tile.thread_columns,
        "TILE_K": tile.k,
        "Y_COLUMNS": op.output.columns,
    }
    bindings = (*weight.bindings(index), *_operands(op, context), tensor(op.output), STATE)
    grid = (-(-_out_rows(request, weight.parts[index]) // tile.columns), -(-request.rows // tile.rows), 1)
    return Dispatch("matmul/tiled.wgsl", constants, bindings, grid)


def _operands(op: Op, context: KernelContext) -> tuple:
    """x [, bias] [, B] [, norm weight] [, low rank] [, residual], in the order of the shaders' bindings."""
    vectors = tuple(context.weights[ref].bindings(0)[0] for ref in op.weights[1:])
    return (tensor(op.inputs[0]), *vectors, *(tensor(extra) for extra in op.inputs[1:]))
