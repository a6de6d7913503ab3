"""`chat doctor` and `chat bench`: the engine's own reports, as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from app.terminal import ProgressLine, print_table
from inference.events import Loading

if TYPE_CHECKING:
    from inference import Engine
    from inference.bench_layouts import OpenEngine
    from inference.plan.explain import PlanRow

_PHASES: tuple[Literal["decode", "prefill"], ...] = ("decode", "prefill")


def doctor(as_json: bool) -> int:
    """What this machine offers."""
    from inference.doctor import report

    found = report()
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        print_table(found.rows)
    return 0


def plan(engine: Engine, as_json: bool) -> int:
    """Each operation of the model's decode and prefill plans, as it would run."""
    plans = {phase: engine.plan(phase) for phase in _PHASES}
    if as_json:
        print(json.dumps({phase: [asdict(row) for row in rows] for phase, rows in plans.items()}, ensure_ascii=False))
        return 0
    for phase, rows in plans.items():
        print(f"{phase}: {len(rows)} operations, {sum(row.dispatches for row in rows)} dispatches")
        header = ("LAYER", "OPERATION", "IN -> OUT", "WEIGHTS", "SUM IN", "SHAPE", "KERNEL", "ON", "WHY")
        print_table([header, *map(_plan_cells, rows)])
        print()
    return 0


def _plan_cells(row: PlanRow) -> tuple[str, ...]:
    layer = "" if row.layer is None else str(row.layer)
    types = f"{row.input_dtype} -> {row.output_dtype}"
    name = row.name if row.kind in row.name else f"{row.kind} {row.name}"
    why = "; ".join([row.reason, *(f"not {variant}: {reason}" for variant, reason in row.rejected), *row.notes])
    return layer, name, types, row.weight or "-", row.accumulate or "-", row.shape, row.variant, row.device, why


def bench(
    engine: Engine, prompts: tuple[int, ...] | None, generate: int | None, depths: tuple[int, ...], as_json: bool
) -> int:
    """Speed and memory, measured."""
    from inference.bench import run

    progress = ProgressLine()
    try:
        found = run(engine, prompts, generate, depths, progress=lambda stage: progress(Loading(stage, 0, 0)))
    finally:
        progress.wipe()
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        print_table(found.rows)
    return 0


def bench_layouts(
    open_engine: OpenEngine, layouts: Sequence[str], depth: int | None, generate: int | None, as_json: bool
) -> int:
    """The layouts of the KV cache side by side."""
    from inference.bench_layouts import run

    progress = ProgressLine()
    try:
        found = run(open_engine, layouts, depth, generate, lambda stage: progress(Loading(stage, 0, 0)))
    finally:
        progress.wipe()
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    print_table(found.rows)
    print(*found.legend, sep="\n")
    return 0


def bench_matmul(shape: str, as_json: bool) -> int:
    """One-row matmuls by format, beside the bandwidth of the device's memory."""
    from inference.bench_matmul import run

    progress = ProgressLine()
    try:
        found = run(shape, progress=lambda stage: progress(Loading(stage, 0, 0)))
    finally:
        progress.wipe()
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    print_table(found.rows)
    print(*found.legend, sep="\n")
    return 0
