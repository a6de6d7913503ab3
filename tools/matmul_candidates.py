"""The matmuls that `explore_matmul.py` measures, what matters most first, and the divisions that it tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.formats.planar import FORMATS, PlanarFormat
from inference.kernels.matmul_shapes import GemvShape, Tile
from inference.shapes import SHAPES

SMOLLM2: Mapping[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "tie_word_embeddings": True,
}
MODELS = {**SHAPES, "smollm2": SMOLLM2}

Shape = GemvShape | Tile


@dataclass(frozen=True)
class Job:
    """A matmul of a model's step of `rows` rows, and the divisions to try."""

    model: str
    format: str
    name: str
    rows: int
    shapes: tuple[Shape, ...]


def code(shape: Shape) -> str:
    """A short name."""
    if isinstance(shape, Tile):
        return f"{shape.rows}x{shape.columns}/{shape.thread_rows}x{shape.thread_columns}k{shape.k}b{shape.buffers}"
    parts = f"u{shape.unit}l{shape.lanes}g{shape.lane_groups}r{shape.rows}s{shape.split}n{shape.unroll}"
    return f"{parts}x{shape.staged}{shape.decode[0]}{shape.x_rows}"


def one_row_shapes(form: PlanarFormat, columns: int, thorough: bool) -> Iterator[GemvShape]:
    """Divisions of a one-row matmul."""
    yield GemvShape(8, 32, 4, 2, unroll=min(4, -(-columns // 256)))
    unit = 8 if form.dense else 32
    if columns < 2048:
        for lanes, groups, split, unroll in (
            (32, 4, 1, 3),
            (32, 4, 2, 1),
            (32, 6, 3, 1),
            (8, 18, 9, 1),
            (16, 10, 5, 1),
        ):
            yield GemvShape(8, lanes, groups, 1, split, unroll)
        for lanes, groups, split in (
            (32, 4, 1), (16, 8, 1), (16, 8, 2), (8, 16, 1), (8, 18, 3), (4, 20, 5), (2, 36, 9), (16, 12, 3), (16, 6, 3),
            (8, 12, 6),
        ):  # fmt: skip
            for decode in ("convert", "mantissa"):
                yield GemvShape(unit, lanes, groups, 1, split, 1, 0, decode)
        yield GemvShape(unit, 8, 16, 2, 1, 1, 0, "mantissa")
        yield GemvShape(unit, 8, 16, 1, 1, 2, 0, "mantissa")
        return
    decode = "mantissa" if not form.dense else "convert"
    main = [
        (lanes, 128 // lanes, r, s, n, 0) for lanes in (4, 8, 16) for r in (1, 2, 4) for s in (1, 4) for n in (1, 2)
    ]
    staged = min(columns, 2048)
    main += [(lanes, 128 // lanes, r, s, 1, staged) for lanes in (8, 32) for r in (1, 2, 4) for s in (1, 4)]
    main += [(8, 32, r, 8, n, 0) for r in (1, 2) for n in (1, 2)] + [(8, 32, r, 4, 1, staged) for r in (2, 4)]
    main += [(8, 16, 1, 1, 4, 0), (8, 16, 2, 1, 4, 0), (8, 16, 1, 4, 4, 0), (16, 8, 1, 1, 4, 0)]
    main += [(32, 4, 4, 1, 1, 0), (32, 4, 4, 4, 1, 0), (32, 8, 8, 8, 1, 0), (8, 8, 2, 2, 2, 0), (8, 16, 2, 2, 2, 0)]
    few = [(8, 16, 2, 1, 1, 0), (8, 16, 2, 4, 1, 0), (8, 16, 1, 4, 2, 0), (8, 16, 4, 4, 1, staged), (8, 16, 2, 1, 2, 0)]
    few += [(4, 32, 2, 4, 1, 0), (16, 8, 2, 4, 1, 0), (32, 4, 4, 1, 1, staged)]
    for lanes, groups, rows, split, unroll, stage in main if thorough else few:
        yield GemvShape(unit, lanes, groups, rows, split, unroll, stage, decode)
    if not form.dense and not form.table:
        for lanes, groups, rows, split, unroll, stage in few[:4]:
            yield GemvShape(unit, lanes, groups, rows, split, unroll, stage, "convert")
        yield from packed_shapes(columns, thorough)


def packed_shapes(columns: int, thorough: bool) -> Iterator[GemvShape]:
    """Divisions of a one-row matmul with x in fixed point."""
    main = [(32, 8, 2, 1, 2), (32, 8, 4, 1, 1), (8, 32, 4, 4, 1), (8, 32, 2, 4, 2)]
    if thorough:
        main += [(32, 16, 4, 2, 1), (16, 16, 2, 2, 2), (16, 16, 4, 4, 1), (16, 32, 4, 4, 1), (8, 16, 4, 4, 1)]
        main += [(8, 16, 2, 4, 1), (8, 64, 4, 8, 1), (16, 16, 4, 2, 1), (32, 8, 1, 1, 4), (32, 16, 2, 2, 2)]
    for stage in (2048, 4096, 3584, 7168):
        if stage <= columns and columns % stage == 0:
            for lanes, groups, rows, split, unroll in main:
                yield GemvShape(32, lanes, groups, rows, split, unroll, stage, "packed")


def few_row_shapes(form: PlanarFormat, columns: int) -> Iterator[Shape]:
    """Divisions of a matmul of 8 or 32 rows: GEMVs and small tiles."""
    unit = 8 if form.dense else 32
    yield from (Tile(8, 32, 2, 2), Tile(8, 64, 2, 4), Tile(8, 32, 2, 2, buffers=2), Tile(8, 32, 1, 1))
    if columns < 2048:
        for lanes, groups, rows, split in ((32, 4, 1, 1), (16, 8, 1, 1), (16, 8, 1, 2), (8, 18, 1, 3), (8, 16, 1, 1)):
            yield GemvShape(unit, lanes, groups, rows, split, 1, 0, "mantissa")
            yield GemvShape(unit, lanes, groups, rows, split, 1, 288, "mantissa")
        yield from (GemvShape(8, 32, 4, 1), GemvShape(8, 32, 6, 1, 3), GemvShape(8, 16, 10, 1, 5))
        return
    for lanes, rows, split in ((4, 1, 1), (4, 2, 1), (8, 1, 1), (8, 2, 1), (8, 4, 1), (8, 1, 4), (8, 2, 4), (16, 2, 4)):
        yield GemvShape(unit, lanes, 128 // lanes, rows, split, 1, 0, "mantissa")
        yield GemvShape(unit, lanes, 128 // lanes, rows, split, 1, 1024, "mantissa")
    if not form.dense and not form.table:
        for lanes, groups, rows, split, x_rows in (
            (8, 16, 4, 1, 4), (8, 16, 2, 1, 4), (8, 16, 4, 1, 2), (8, 32, 4, 4, 4), (8, 32, 2, 1, 4), (8, 16, 2, 1, 8),
            (16, 16, 4, 2, 4), (8, 16, 4, 2, 4),
        ):  # fmt: skip
            for stage in (1024, 2048):
                yield GemvShape(32, lanes, groups, rows, split, 1, stage, "packed", x_rows)
    yield GemvShape(8, 32, 4, 1)


SMALL_TILES = (Tile(16, 32, 2, 2), Tile(32, 32, 4, 2), Tile(32, 32, 2, 2), Tile(32, 64, 4, 4), Tile(32, 64, 4, 2))
TILES = (
    Tile(64, 64, 4, 4), Tile(64, 64, 4, 4, 16), Tile(64, 64, 4, 4, 16, 2), Tile(64, 64, 8, 4, 16),
    Tile(64, 64, 8, 8, 16), Tile(64, 128, 8, 4, 16), Tile(64, 128, 8, 4, 16, 2), Tile(64, 128, 8, 8, 16),
    Tile(64, 128, 8, 8, 16, 2), Tile(64, 128, 4, 8, 16), Tile(128, 64, 8, 4, 16), Tile(128, 64, 8, 8, 16),
    Tile(128, 128, 8, 8, 16), Tile(128, 128, 8, 8, 16, 2), Tile(128, 128, 8, 8, 8, 2), Tile(128, 128, 8, 8, 32),
    Tile(32, 128, 4, 8, 16), Tile(32, 64, 4, 4, 32), Tile(32, 32, 4, 2),
)  # fmt: skip


def jobs() -> Iterator[Job]:
    """What to measure, what matters most first."""

    def gemv(model: str, format_name: str, names: Sequence[str], thorough: bool) -> Iterator[Job]:
        form = FORMATS[format_name]
        for name in names:
            columns = MODELS[model]["intermediate_size" if name.endswith("down") else "hidden_size"]
            yield Job(model, format_name, name, 1, tuple(one_row_shapes(form, columns, thorough)))

    def many(model: str, format_name: str, names: Sequence[str], rows: int) -> Iterator[Job]:
        form = FORMATS[format_name]
        for name in names:
            columns = MODELS[model]["intermediate_size" if name.endswith("down") else "hidden_size"]
            few = tuple(few_row_shapes(form, columns))
            shapes = {8: few, 32: (*few, *SMALL_TILES), 256: TILES, 512: TILES}[rows]
            yield Job(model, format_name, name, rows, shapes)

    output, gate_up, down, qkv = "attention.output", "feed_forward.gate_up", "feed_forward.down", "attention.qkv"
    all_names = (qkv, output, gate_up, down, "lm_head")
    yield from gemv("8b", "q4_0", (output, gate_up, down, qkv, "lm_head"), True)
    yield from gemv("1b", "q4_0", (output, gate_up, down), True)
    yield from gemv("smollm2", "q4_1", all_names, True)
    yield from gemv("8b", "q4_k", (output, gate_up, down), True)
    yield from many("8b", "q4_0", (output, gate_up, down), 256)
    yield from many("smollm2", "q4_1", all_names[:-1], 32)
    yield from gemv("8b", "q6_k", (output, down), True)
    yield from gemv("8b", "iq4_nl", (output, gate_up), True)
    yield from many("smollm2", "q4_1", all_names, 8)
    yield from many("8b", "q4_0", (output, gate_up), 8)
    yield from gemv("8b", "q8_0", (output, gate_up), True)
    yield from gemv("8b", "f16", (output, gate_up), True)
    yield from many("smollm2", "q4_1", (qkv, down), 256)
    for format_name in ("q5_k", "q4_1", "mxfp4", "q3_k", "q2_k", "iq4_xs", "q5_0", "q5_1"):
        yield from gemv("8b", format_name, (output, gate_up), False)
    yield from many("1b", "q4_0", (output, gate_up, down), 256)
    yield from many("8b", "q4_0", (output,), 512)
    yield from many("8b", "q4_0", (output, gate_up), 32)
    yield from gemv("8b", "q6_k", ("lm_head",), False)
