"""How matmul kernels divide their work: what a lane, a lane group and a workgroup make, by the size of the matrix."""

from __future__ import annotations

from dataclasses import dataclass

from inference.formats.planar import PlanarFormat
from inference.gpu.device import DeviceCaps
from inference.kernels.dispatch import Constant

GEMV_INVOCATIONS = 128
WORKGROUP_LANES = 16
MOST_GEMV_ROWS = 8
"""Rows of X that a GEMV takes at once; more share tiles."""

FILLING = 128
"""So many workgroups fill a large GPU: with fewer of a large tile, smaller ones are faster."""


@dataclass(frozen=True)
class MatmulRequest:
    """What selection looks at."""

    rows: int
    columns: int
    outputs: int
    gated: bool
    norm: bool
    caps: DeviceCaps


@dataclass(frozen=True)
class GemvShape:
    """The constants of gemv.wgsl: see there.

    A lane takes `unit` columns at once; `staged` columns of each row of X are held in workgroup memory, 0: none.
    """

    unit: int
    lanes: int
    lane_groups: int
    rows: int
    split: int = 1
    unroll: int = 1
    staged: int = 0
    decode: str = "convert"

    def constants(self) -> dict[str, Constant]:
        """What gemv.wgsl is rendered with."""
        return {
            "UNIT": self.unit,
            "LANES": self.lanes,
            "LANE_GROUPS": self.lane_groups,
            "ROWS": self.rows,
            "SPLIT": self.split,
            "UNROLL": self.unroll,
            "STAGED": self.staged,
            "DECODE": self.decode,
        }

    def storage(self, request: MatmulRequest) -> int:
        """Bytes of workgroup memory."""
        x_rows = min(request.rows, MOST_GEMV_ROWS)
        sums = x_rows * (self.rows * (2 if request.gated else 1) + request.norm)
        staged = self.staged * (self.unit + 4) // self.unit
        squares = self.lanes * self.lane_groups if request.norm and staged else 0
        return x_rows * (staged + squares) * 4 + (self.lane_groups * sums * 4 if self.split > 1 else 0)

    def workgroups(self, out_rows: int) -> int:
        """How many make `out_rows` outputs."""
        return -(-out_rows // (self.rows * self.lane_groups // self.split))


def gemv_lanes(subgroup: bool, caps: DeviceCaps) -> tuple[int, int]:
    """Invocations that share a row of weights, and how many such groups a workgroup has."""
    lanes = min(caps.subgroup_size, 32) if subgroup else WORKGROUP_LANES
    return lanes, min(GEMV_INVOCATIONS, caps.max_invocations) // lanes


def gemv_shape(request: MatmulRequest, form: PlanarFormat, subgroup: bool, out_rows: int) -> GemvShape:
    """The shape for `out_rows` of the request's outputs, their weights in `form`."""
    lanes, lane_groups = gemv_lanes(subgroup, request.caps)
    # Rows that share their reads of x; fewer where there would not be enough workgroups to fill a device.
    rows = 2 if out_rows >= 1024 and not request.gated and request.rows == 1 else 1
    unroll = 4 if request.rows == 1 else 1
    return GemvShape(8, lanes, lane_groups, rows, unroll=min(unroll, -(-request.columns // 8 // lanes)))


@dataclass(frozen=True)
class Tile:
    """Outputs of a workgroup (rows x columns), of one invocation, and the slice of K in workgroup memory, in one or two
    buffers."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    k: int = 32
    buffers: int = 1

    def storage(self, gated: bool, norm: bool) -> int:
        """Bytes of workgroup memory."""
        quads = self.k // 4 + 1
        matrices = self.rows + self.columns * (2 if gated else 1)
        return self.buffers * matrices * quads * 16 + (self.rows * self.k if norm else 0)

    def constants(self) -> dict[str, Constant]:
        """Those of tiled.wgsl."""
        return {
            "TILE_ROWS": self.rows,
            "TILE_COLUMNS": self.columns,
            "THREAD_ROWS": self.thread_rows,
            "THREAD_COLUMNS": self.thread_columns,
            "TILE_K": self.k,
            "BUFFERS": self.buffers,
        }

    def grid(self, rows: int, out_rows: int) -> tuple[int, int, int]:
        """Workgroups for `rows` x `out_rows` outputs."""
        return -(-out_rows // self.columns), -(-rows // self.rows), 1


# Largest first; a tile serves steps of at least its rows.
TILES = (Tile(64, 64, 4, 4), Tile(32, 32, 4, 2), Tile(8, 32, 2, 2))


def tile_for(request: MatmulRequest) -> Tile | None:
    """The largest tile that fills the device, or the smallest that fits; None where none fits."""
    fitting = [
        tile
        for tile in TILES
        if tile.rows <= request.rows and tile.storage(request.gated, request.norm) <= request.caps.max_workgroup_storage
    ]
    filling = (tile for tile in fitting if request.caps.software or _workgroups(tile, request) >= FILLING)
    return next(filling, fitting[-1] if fitting else None)


def _workgroups(tile: Tile, request: MatmulRequest) -> int:
    columns, rows, _ = tile.grid(request.rows, request.outputs)
    return columns * rows
