"""What the engine does as spans on one timeline, written as a Chrome trace.

The format is the Trace Event Format's JSON object: complete events ("ph": "X", microseconds) and the names of their
tracks. chrome://tracing and ui.perfetto.dev show it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inference.engine import Engine
from inference.errors import DeviceUnavailable, NotWritten
from inference.events import Prefill, Token, TokenTimes
from inference.op_times import OpTimes, time_one_step
from inference.plan.explain import PlanRow
from inference.sampling import Sampling
from inference.sequence import Sequence

ENGINE, FINISH, SUBMIT = "engine", "finish", "submit"
HOST_TRACKS: Mapping[str, str] = {
    ENGINE: "engine thread",
    FINISH: "finishing threads",
    SUBMIT: "submitting thread",
}
"""Tracks of the host's threads and their titles; every other track is a device by its name in the plan."""


@dataclass(frozen=True)
class Span:
    """Something on a track that takes `length_s` seconds from `start_s` on. Those of a track nest or follow each other.

    `kind` groups spans that are alike, `details` is what else is known of this one.
    """

    track: str
    name: str
    start_s: float
    length_s: float
    kind: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


def record(
    engine: Engine, prompt: int, generate: int, progress: Callable[[str], None] = lambda _: None, seed: int = 0
) -> tuple[list[Span], tuple[str, ...]]:
    """Trace a prefill chunk by operations, a greedy reply to `prompt` random tokens, and a decode step by operations.

    They lie on the timeline one after another, from 0 on. Returns the spans and notices of what could not be measured,
    and of a reply that ends before `generate` tokens. Raises ContextFull.
    """
    ids = np.random.default_rng(seed).integers(0, engine.info.vocab_size, prompt).tolist()
    sequence = engine.sequence()
    spans: list[Span] = []
    notices: list[str] = []

    def end() -> float:
        return max((span.end_s for span in spans), default=0.0)

    def by_operations(phase: Literal["decode", "prefill"]) -> None:
        progress(f"trace: the operations of a {phase} step")
        try:
            times = time_one_step(engine.executor, sequence, phase)
        except DeviceUnavailable as error:
            notices.append(f"the trace lacks the operations of {phase}: {error}")
        else:
            spans.extend(op_spans(engine.plan(phase), times, end()))

    try:
        sequence.check_room(prompt + generate)
        by_operations("prefill")
        progress("trace: a reply")
        reply = _write_reply(engine, ids, generate, sequence)
        spans.extend(reply_spans(reply, end(), "compute" if engine.info.device == "cpu" else "wait"))
        if len(reply.tokens) < generate:
            notices.append(f"the reply in the trace ends after {len(reply.tokens)} tokens: the model ended it")
        by_operations("decode")
    finally:
        sequence.close()
    return spans, tuple(notices)


@dataclass(frozen=True)
class ReplyTimes:
    """When what of a reply was told, in seconds since it was asked for.

    `chunks` are the prompt tokens read so far and when, beginning with those that were held before; `first_s` is when
    the first of `tokens` came.
    """

    chunks: tuple[tuple[int, float], ...]
    tokens: tuple[TokenTimes, ...]
    first_s: float


def _write_reply(engine: Engine, ids: list[int], generate: int, sequence: Sequence) -> ReplyTimes:
    chunks: list[tuple[int, float]] = []
    tokens: list[TokenTimes] = []
    first_s, began = 0.0, time.perf_counter()
    for event in engine.generate(ids, Sampling(temperature=0), generate, sequence):
        now = time.perf_counter() - began
        match event:
            case Prefill(done, total) if not tokens and done < total:
                chunks.append((done, now))
            case Token(times=times) if event.id >= 0:
                first_s = first_s or now
                tokens.append(times)
    return ReplyTimes(tuple(chunks), tuple(tokens), first_s)


def reply_spans(reply: ReplyTimes, start_s: float, waits: str) -> Iterator[Span]:
    """The spans of a reply that was asked for at `start_s`; `waits` is as for `token_spans`.

    The last chunk of the prompt, which the first token comes from, is part of that token's step.
    """
    chunks, tokens = reply.chunks, reply.tokens
    for (before, since), (done, at) in pairwise(chunks):
        yield Span(ENGINE, f"prefill of {done - before}", start_s + since, at - since, "prefill", {"tokens": done})
    if tokens:
        yield from token_spans(tokens, start_s + reply.first_s - tokens[0].wall_s, waits)


def token_spans(tokens: Iterable[TokenTimes], start_s: float, waits: str) -> Iterator[Span]:
    """A span a token on the engine's thread with what that does one after another, and what other threads do meanwhile.

    `waits` is what it does until the step's result is there. Of the other threads only lengths are known: their spans
    begin with the token's, or where the one before ends.
    """
    busy = {FINISH: start_s, SUBMIT: start_s}
    for index, times in enumerate(tokens):
        step = times.step
        yield Span(ENGINE, f"token {index + 1}", start_s, times.wall_s, "token")
        parts = {
            "hand over": times.report_s,
            "encode": step.encode_s,
            waits: step.wait_s,
            "sample": step.sample_s,
            "detokenise": times.text_s,
        }
        for (name, length_s), at in zip(parts.items(), accumulate(parts.values(), initial=start_s), strict=False):
            if length_s:
                yield Span(ENGINE, name, at, length_s, "host")
        for track, length_s in ((FINISH, step.finish_s), (SUBMIT, step.submit_s)):
            if length_s:
                at = max(busy[track], start_s)
                busy[track] = at + length_s
                yield Span(track, track, at, length_s, "host", {"begins": "not measured"})
        start_s += times.wall_s


def op_spans(rows: Ids[PlanRow], times: OpTimes, start_s: float) -> Iterator[Span]:
    """A step of a plan: one span on the engine's track, one an operation on its device's, in one a layer there.

    Operations follow each other as in the plan, each as long as it takes by itself.
    """
    starts = list(accumulate(times.ops, initial=start_s))
    step = {
        "tokens": times.rows,
        "depth": times.depth,
        "measured": f"each operation by itself, in the median one of {times.steps} steps",
        "together_us": round(times.whole * 1e6, 3),
    }
    yield Span(ENGINE, f"{times.phase} step by operations", start_s, starts[-1] - start_s, times.phase, step)
    timed = list(zip(rows, starts, times.ops, strict=False))
    if not len(rows) == len(timed) == len(times.ops):
        raise ValueError(f"{len(times.ops)} times for a plan of {len(rows)} operations")
    for (device, layer), group in groupby(timed, lambda each: (each[0].device, each[0].layer)):
        run = list(group)
        if layer is not None:
            _, last, length_s = run[-1]
            yield Span(device, f"layer {layer}", run[0][1], last + length_s - run[0][1], "layer", {"layer": layer})
        for row, at, length_s in run:
            yield Span(device, row.name, at, length_s, row.kind, _details(row))


def _details(row: PlanRow) -> dict[str, Any]:
    layer = {} if row.layer is None else {"layer": row.layer}
    weight = {"weight": row.weight} if row.weight else {}
    moved = {"moved_bytes": row.moved_bytes} if row.moved_bytes else {}
    return {
        "op": row.index,
        **layer,
        "kind": row.kind,
        "kernel": row.variant,
        "why": row.reason,
        "dtype": f"{row.input_dtype} -> {row.output_dtype}",
        **weight,
        "shape": row.shape,
        "dispatches": row.dispatches,
        **moved,
    }


def trace_events(spans: Iterable[Span]) -> dict[str, Any]:
    """The spans as the JSON object of the Trace Event Format: the host's threads in one process, devices in another."""
    spans = list(spans)
    named = dict.fromkeys((*HOST_TRACKS, *(span.track for span in spans)))
    used = {span.track for span in spans}
    # pid 1 is the host, pid 2 the devices; the tid is the place of the track.
    places = {track: (1 if track in HOST_TRACKS else 2, tid) for tid, track in enumerate(named, 1) if track in used}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((1, "host"), (2, "devices"))
        if pid in {pid for pid, _ in places.values()}
    ]
    for track, (pid, tid) in places.items():
        title = HOST_TRACKS.get(track, track)
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
    for span in spans:
        pid, tid = places[span.track]
        # Both ends are rounded, and not the length, so that what nests still does.
        start, end = round(span.start_s * 1e9), round(span.end_s * 1e9)
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "pid": pid,
                "tid": tid,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": dict(span.details),
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def check_place(path: Path) -> None:
    """Raise NotWritten where `write_trace` could not write to `path`, as far as that can be known before."""
    _written(path, "", keep=False)


def write_trace(spans: Iterable[Span], path: Path) -> None:
    """Write the trace to a file, in place of one that is there, whole or not at all. Raises NotWritten."""
    _written(path, json.dumps(trace_events(spans), ensure_ascii=False, allow_nan=False), keep=True)


def _written(path: Path, text: str, keep: bool) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part") if path.name else path
    try:
        if path.exists() and not path.is_file():
            raise NotWritten(f"The trace cannot be written to {path}: that is no file; name one, such as trace.json.")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if keep:
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotWritten(f"The trace cannot be written to {path}: {why}; name another file.") from None
