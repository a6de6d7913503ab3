"""`chat doctor` and `chat bench`: the engine's own reports, as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from app.terminal import ProgressLine, print_table
from inference.events import Loading

if TYPE_CHECKING:
    from inference import Engine
    from inference.bench_layouts import OpenEngine
    from inference.plan.explain import PlanRow

T = TypeVar("T")


class Report(Protocol):
    """What the engine measured or found: as a table, and as what JSON can hold."""

    @property
    def rows(self) -> Any: ...
    def to_json(self) -> Any: ...


_PHASES: tuple[Literal["decode", "prefill"], ...] = ("decode", "prefill")


def doctor(as_json: bool) -> int:
    """What this machine offers."""
    from inference.doctor import report

    return _tell(report(), as_json)


def plan(engine: Engine, as_json: bool) -> int:
    """Each operation of the model's decode and prefill plans, as it would run, and where its replies end."""
    from inference.plan.explain import moved_per_token
    from inference.stop_tokens import describe_stops

    plans = {phase: engine.plan(phase) for phase in _PHASES}
    if as_json:
        print(json.dumps({phase: [asdict(row) for row in rows] for phase, rows in plans.items()}, ensure_ascii=False))
        return 0
    for phase, rows in plans.items():
        print(f"{phase}: {len(rows)} operations, {sum(row.dispatches for row in rows)} dispatches")
        header = ("LAYER", "OPERATION", "IN -> OUT", "WEIGHTS", "SUM IN", "SHAPE", "KERNEL", "ON", "WHY")
        print_table([header, *map(_plan_cells, rows)])
        if moved := moved_per_token(rows):
            print(f"moved between the devices: {moved:,} bytes a token")
        print()
    if engine.info.placement:
        print(f"split: {engine.info.placement}")
    print(f"stops: {describe_stops(engine.tokenizer.vocabulary.stops)}")
    return 0


def _plan_cells(row: PlanRow) -> tuple[str, ...]:
    layer = "" if row.layer is None else str(row.layer)
    types = f"{row.input_dtype} -> {row.output_dtype}"
    name = row.name if row.kind in row.name else f"{row.kind} {row.name}"
    moved = [f"{row.moved_bytes:,} bytes a token"] if row.moved_bytes else []
    why = "; ".join([row.reason, *moved, *(f"not {variant}: {reason}" for variant, reason in row.rejected), *row.notes])
    return layer, name, types, row.weight or "-", row.accumulate or "-", row.shape, row.variant, row.device, why


def bench(
    engine: Engine,
    prompts: tuple[int, ...] | None,
    generate: int | None,
    depths: tuple[int, ...],
    as_json: bool,
    trace: Path | None = None,
) -> int:
    """Speed and memory, measured; and a trace of the first prompt and as many tokens, where there is a file for it."""
    from inference.bench import run

    found = _measured(lambda stage: run(engine, prompts, generate, depths, progress=stage))
    if trace is not None:
        from inference.trace import record, write_trace

        prompt, tokens = found.prefill[0].tokens, found.decode[0].tokens
        spans, notices = _measured(lambda stage: record(engine, prompt, tokens, stage))
        write_trace(spans, trace)
        found = replace(found, trace=str(trace), notices=(*found.notices, *notices))
    return _tell(found, as_json)


def bench_batch(engine: Engine, counts: Sequence[int], depth: int, generate: int | None, as_json: bool) -> int:
    """Several sequences decoded together, beside one alone."""
    from inference.bench_batch import run

    found = _measured(lambda stage: run(engine, counts, depth, generate, progress=stage))
    return _tell(found, as_json, found.legend)


def bench_layouts(
    open_engine: OpenEngine, layouts: Sequence[str], depth: int | None, generate: int | None, as_json: bool
) -> int:
    """The layouts of the KV cache side by side."""
    from inference.bench_layouts import run

    found = _measured(lambda stage: run(open_engine, layouts, depth, generate, stage))
    return _tell(found, as_json, found.legend)


def bench_matmul(shape: str, as_json: bool) -> int:
    """One-row matmuls by format, beside the bandwidth of the device's memory."""
    from inference.bench_matmul import run

    found = _measured(lambda stage: run(shape, progress=stage))
    return _tell(found, as_json, found.legend)


def _measured(measure: Callable[[Callable[[str], None]], T]) -> T:
    """What `measure` finds, while the stages that it names are shown."""
    progress = ProgressLine()
    try:
        return measure(lambda stage: progress(Loading(stage, 0, 0)))
    finally:
        progress.wipe()


def _tell(found: Report, as_json: bool, legend: Sequence[str] = ()) -> int:
    """Print a report: one JSON object, or a table and what its figures mean."""
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    print_table(found.rows)
    if legend:
        print(*legend, sep="\n")
    return 0
