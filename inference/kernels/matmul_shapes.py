"""How matmul kernels divide their work: what a lane, a lane group and a workgroup make, by the size of the matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inference.formats.planar import PlanarFormat
from inference.gpu.device import DeviceCaps
from inference.kernels.dispatch import Constant

GEMV_INVOCATIONS = 128
WORKGROUP_LANES = 16
MOST_GEMV_ROWS = 8
"""Rows of X that a GEMV takes at once; more share tiles."""

WIDE_UNIT = 32
"""Columns that a lane takes at once where it can: 16 bytes of 4-bit codes, a group of most formats."""

PACKED_UNIT_WORDS = 24
"""Workgroup memory of 32 columns of x in fixed point (packed_product.wgsl)."""

LONG_ROWS, VERY_LONG_ROWS = 2048, 8192
"""Columns from which on rows are long: lanes have many units of them."""

FEW_OUTPUTS = 8192
"""Up to so many outputs of several rows of X do not fill a large GPU with GEMVs of a few lanes, nor with tiles."""

FEW_LANES, MOST_SPLITS = 4, 9
ONE_TURN_UNITS = 96
"""So many units of 8 columns a workgroup's lanes take at once; of more they take two each."""

MANY_OUTPUTS = 32768
"""So many rows of weights fill any device by themselves."""

FILLING = 128
"""So many workgroups fill a large GPU: with fewer of a large tile, smaller ones are faster."""

FILLED = 0.85
"""So much of a GPU, or of all rounds where a workgroup has a multiprocessor to itself, counts as filled."""


@dataclass(frozen=True)
class MatmulRequest:
    """What selection looks at."""

    rows: int
    columns: int
    outputs: int
    gated: bool
    norm: bool
    format: PlanarFormat
    caps: DeviceCaps


@dataclass(frozen=True)
class GemvShape:
    """The constants of gemv.wgsl: see there.

    A lane takes `unit` columns at once, of up to `x_rows` rows of X; `staged` columns of each are held in workgroup
    memory, 0: none.
    """

    unit: int
    lanes: int
    lane_groups: int
    rows: int
    split: int = 1
    unroll: int = 1
    staged: int = 0
    decode: str = "convert"
    x_rows: int = MOST_GEMV_ROWS

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
        x_rows = min(request.rows, self.x_rows)
        sums = x_rows * (self.rows * (2 if request.gated else 1) + request.norm)
        unit_words = PACKED_UNIT_WORDS if self.decode == "packed" else self.unit + 4
        staged = self.staged // self.unit * unit_words
        squares = self.lanes * self.lane_groups if request.norm and staged else 0
        return x_rows * (staged + squares) * 4 + (self.lane_groups * sums * 4 if self.split > 1 else 0)

    def workgroups(self, out_rows: int) -> int:
        """How many make `out_rows` outputs."""
        return -(-out_rows // (self.rows * self.lane_groups // self.split))


def gemv_lanes(subgroup: bool, caps: DeviceCaps) -> tuple[int, int]:
    """Invocations that share a row of weights, and how many such groups a workgroup has."""
    lanes = min(caps.subgroup_size, 32) if subgroup else WORKGROUP_LANES
    return lanes, min(GEMV_INVOCATIONS, caps.max_invocations) // lanes


def packed_shape(request: MatmulRequest, subgroup: bool) -> GemvShape:
    """The shape where x is in fixed point. A lane's rows share what it reads of x; so do X's rows codes."""
    most, _ = gemv_lanes(subgroup, request.caps)
    if request.rows > 1:
        lanes = min(most, 8 if request.outputs > FEW_OUTPUTS else 16)
        return GemvShape(WIDE_UNIT, lanes, 16, 4, 1, 1, _staged(request, 2048), "packed", x_rows=2)
    if request.outputs >= MANY_OUTPUTS:
        return GemvShape(WIDE_UNIT, most, 8, 4, 1, 1, _staged(request, 4096), "packed")
    split = 2 if request.columns > VERY_LONG_ROWS else 1
    return GemvShape(WIDE_UNIT, most, 8 * split, 2, split, 2, _staged(request, 7168), "packed")


def _staged(request: MatmulRequest, most: int) -> int:
    """The fewest equal blocks of a row that have at most `most` columns, or as many of these where none do."""
    units = request.columns // WIDE_UNIT
    counts = range(-(-request.columns // most), MOST_SPLITS + 1)
    return next((request.columns // count for count in counts if units % count == 0), most)


def gemv_shape(request: MatmulRequest, subgroup: bool, out_rows: int) -> GemvShape:
    """The shape for `out_rows` of the request's outputs: the fastest of those that docs/performance.md tells of, by
    the length of rows, how many there are, and rows of X."""
    most, _ = gemv_lanes(subgroup, request.caps)
    wide = not request.format.dense and request.columns % WIDE_UNIT == 0
    if request.caps.software:
        shape = _software_shape(request, wide, most)
    elif request.columns >= LONG_ROWS:
        shape = _long_row_shape(request, wide, most)
    else:
        shape = _short_row_shape(request, wide, most, out_rows)
    return shape if shape.storage(request) <= request.caps.max_workgroup_storage else _plain_shape(request, most)


def _plain_shape(request: MatmulRequest, most: int, rows: int = 1) -> GemvShape:
    """Units of 8 columns, a lane group a row or two."""
    unroll = 4 if request.rows == 1 else 1
    return GemvShape(8, most, GEMV_INVOCATIONS // most, rows, unroll=min(unroll, -(-request.columns // 8 // most)))


def _software_shape(request: MatmulRequest, wide: bool, most: int) -> GemvShape:
    """On a processor reading costs most: as much as can be with one read, which serves several rows."""
    return GemvShape(WIDE_UNIT if wide else 8, most, GEMV_INVOCATIONS // most, 4 if request.rows == 1 else 1)


def _long_row_shape(request: MatmulRequest, wide: bool, most: int) -> GemvShape:
    """Wide units, several rows that share x, and several lane groups a row: few rows fill no device otherwise."""
    if not wide:
        return _divided(8, min(most, 16), 2, split=4) if request.rows == 1 else _plain_shape(request, most)
    if request.rows == 1:
        return _divided(WIDE_UNIT, min(most, 8), 8, rows=2, split=4, staged=2048)
    return replace(_divided(WIDE_UNIT, min(most, 8), 16, rows=4, staged=1024), x_rows=4)


def _short_row_shape(request: MatmulRequest, wide: bool, most: int, out_rows: int) -> GemvShape:
    """Lane groups enough for each lane to have one unit, or two: waiting for memory once is most of the time."""
    exact = _exact_shape(request, most) if wide else None
    if request.rows > 1:
        return replace(exact or _plain_shape(request, most), x_rows=2 if request.rows <= MOST_GEMV_ROWS else 4)
    if out_rows >= MANY_OUTPUTS:
        return _plain_shape(request, most, rows=2)
    if request.gated and exact:
        return exact
    units = request.columns // 8
    widest, turns = (16, 1) if units <= ONE_TURN_UNITS else (32, 2)
    lanes = min(most, widest)
    return _divided(8, lanes, 2, split=min(MOST_SPLITS, -(-units // (lanes * turns))))


def _exact_shape(request: MatmulRequest, most: int) -> GemvShape | None:
    """Wide units and as many lanes as divide them, so that none is idle. None where these are not few: narrow units are
    faster then."""
    units = request.columns // WIDE_UNIT
    lanes = min(most, units & -units)
    if lanes > FEW_LANES or units // lanes > MOST_SPLITS:
        return None
    return _divided(WIDE_UNIT, lanes, 4, split=units // lanes)


def _divided(unit: int, lanes: int, row_groups: int, rows: int = 1, split: int = 1, staged: int = 0) -> GemvShape:
    """A shape whose workgroups make `row_groups` times `rows` outputs."""
    decode = "mantissa" if unit == WIDE_UNIT else "convert"
    return GemvShape(unit, lanes, row_groups * split, rows, split, 1, staged, decode)


@dataclass(frozen=True)
class Tile:
    """Outputs of a workgroup (rows x columns), of one invocation, and the slice of K in workgroup memory, in one or two
    buffers.

    With one buffer, `crowd` workgroups on a multiprocessor hide each other's waiting. With two, a workgroup has a
    multiprocessor to itself.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    k: int = 32
    buffers: int = 1
    crowd: int = 1

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


# Largest first; a tile serves steps of at least its rows. Gate and up share what they read of X.
TILES = (
    Tile(128, 128, 8, 8, 16, 2), Tile(64, 128, 8, 4, 16, 2), Tile(64, 64, 8, 4, 16, crowd=3), Tile(64, 64, 4, 4),
    Tile(32, 32, 4, 2), Tile(16, 32, 2, 2), Tile(8, 32, 2, 2),
)  # fmt: skip
GATED_TILES = (
    Tile(128, 64, 8, 4, 16, 2), Tile(64, 64, 8, 4, 16, crowd=3), Tile(32, 64, 4, 2), Tile(32, 32, 4, 2),
    Tile(16, 32, 2, 2), Tile(8, 32, 2, 2),
)  # fmt: skip
SOFTWARE_TILES = (Tile(64, 64, 8, 4, 16), Tile(32, 32, 4, 2), Tile(8, 32, 2, 2))


def tile_for(request: MatmulRequest) -> Tile | None:
    """The largest tile that fills the device, or the smallest that fits; None where none fits."""
    tiles = SOFTWARE_TILES if request.caps.software else GATED_TILES if request.gated else TILES
    fitting = [
        tile
        for tile in tiles
        if tile.rows <= request.rows and tile.storage(request.gated, request.norm) <= request.caps.max_workgroup_storage
    ]
    filling = (tile for tile in fitting if request.caps.software or _fills(tile, request))
    return next(filling, fitting[-1] if fitting else None)


def _fills(tile: Tile, request: MatmulRequest) -> bool:
    columns, rows, _ = tile.grid(request.rows, request.outputs)
    each = tile.crowd if tile.buffers == 1 else -(-columns * rows // FILLING)  # workgroups that a multiprocessor gets
    return columns * rows >= FILLED * each * FILLING
