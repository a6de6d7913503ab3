"""The trace: what is measured is in it, spans nest, and the file is whole or not there."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inference import Engine
from inference.errors import ContextFull, NotWritten
from inference.events import StepSpans, TokenTimes
from inference.op_times import OpTimes, time_one_step
from inference.sequence import Sequence
from inference.trace import ENGINE, FINISH, Span, check_place, op_spans, record, token_spans, trace_events, write_trace
from tests.inference.opening import open_split
from tests.inference.tiny_golden import folder

Tiny = Callable[[str], Path]
DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)]
TOKENS = 6


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Engine]:
    engine = Engine.open(tiny("llama"), device=request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def spans(engine: Engine) -> list[Span]:
    return record(engine, engine.executor.chunk + 5, TOKENS)[0]


def tracks(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The complete events of each track, those that begin first first, and of these the longest."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in sorted((each for each in events if each["ph"] == "X"), key=lambda each: (each["ts"], -each["dur"])):
        found.setdefault(event["tid"], []).append(event)
    return found


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Within a track every span is inside the one that is open, or begins after its end; to the nanosecond."""
    for track in tracks(events).values():
        open_until: list[float] = []
        for event in track:
            assert event["ts"] >= 0 and event["dur"] >= 0
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-6, event
            open_until.append(event["ts"] + event["dur"])


def test_spans_of_a_track_nest_and_are_plain_json(spans: list[Span]) -> None:
    document = json.loads(json.dumps(trace_events(spans), allow_nan=False))
    check_nesting(document["traceEvents"])
    titles = {each["tid"]: each["args"]["name"] for each in document["traceEvents"] if each["name"] == "thread_name"}
    assert len(set(titles.values())) == len(titles) and set(tracks(document["traceEvents"])) == set(titles)


def test_a_span_that_crosses_another_is_found() -> None:
    crossing = [Span(ENGINE, "a", 0, 2, "x"), Span(ENGINE, "b", 1, 2, "x")]
    with pytest.raises(AssertionError):
        check_nesting(trace_events(crossing)["traceEvents"])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_operation_of_the_plan_has_one_span_in_order(engine: Engine, spans: list[Span], phase: Any) -> None:
    step = next(span for span in spans if span.kind == phase and "by operations" in span.name)
    inside = [span for span in spans if step.start_s <= span.start_s < step.end_s and span is not step]
    ops = [span for span in inside if span.kind != "layer"]
    rows = engine.plan(phase)
    assert [(span.name, span.track, span.kind, span.details["op"], span.details.get("layer")) for span in ops] == [
        (row.name, row.device, row.kind, row.index, row.layer) for row in rows
    ]
    assert [(span.details["kernel"], span.details["shape"]) for span in ops] == [(r.variant, r.shape) for r in rows]
    assert all(after.start_s == pytest.approx(before.end_s) for before, after in pairwise(ops))
    assert sum(span.length_s for span in ops) == pytest.approx(step.length_s)
    layers = [span for span in inside if span.kind == "layer"]
    assert [span.details["layer"] for span in layers] == list(range(engine.config.num_layers))
    for layer in layers:
        own = [span.length_s for span in ops if span.details.get("layer") == layer.details["layer"]]
        assert sum(own) == pytest.approx(layer.length_s)


def test_operations_add_up_to_the_wall_time_of_their_step(engine: Engine, spans: list[Span]) -> None:
    for step in (span for span in spans if "by operations" in span.name):
        together = step.details["together_us"] * 1e-6
        if engine.info.device == "cpu":
            assert step.length_s == pytest.approx(together, rel=0.1)
        else:  # in passes of their own they cannot overlap; a software adapter gains nothing by overlapping them
            assert step.length_s > 0 and together > 0


def test_parts_of_tokens_add_up_to_their_wall_time(engine: Engine, spans: list[Span]) -> None:
    tokens = [span for span in spans if span.kind == "token"]
    assert [span.name for span in tokens] == [f"token {index}" for index in range(1, TOKENS + 1)]
    parts = sum(span.length_s for span in spans if span.kind == "host" and span.track == ENGINE)
    assert parts == pytest.approx(sum(span.length_s for span in tokens), rel=0.1)
    names = {span.name for span in spans if span.kind == "host"}
    expected = {"compute", "sample"} if engine.info.device == "cpu" else {"encode", "wait", "finish", "submit"}
    assert names - {"hand over"} == expected | {"detokenise"}


def test_the_prompt_is_read_before_the_first_token(engine: Engine, spans: list[Span]) -> None:
    chunk = next(span for span in spans if span.name == f"prefill of {engine.executor.chunk}")
    first = next(span for span in spans if span.name == "token 1")
    assert 0 < chunk.end_s <= first.start_s


def test_each_device_of_a_plan_has_a_track(engine: Engine) -> None:
    rows = [replace(row, device="webgpu" if row.layer == 0 else "cpu") for row in engine.plan("decode")]
    times = OpTimes("decode", (0.25,) * len(rows), 1.0, 1, 0, 1)
    document = trace_events(op_spans(rows, times, 0.0))
    check_nesting(document["traceEvents"])
    on = {event["args"]["op"]: event["tid"] for event in document["traceEvents"] if "op" in event["args"]}
    assert len({on[row.index] for row in rows}) == 2
    assert all((on[a.index] == on[b.index]) == (a.device == b.device) for a, b in pairwise(rows))
    with pytest.raises(ValueError, match="times for a plan of"):
        list(op_spans(rows[1:], times, 0.0))


@pytest.mark.gpu
def test_a_split_model_has_its_operations_on_two_tracks() -> None:
    executor = open_split(folder("llama") / "config.json", 1, "webgpu")
    sequence = Sequence(executor, executor.new_cache(32))
    sequence.append([5, 6, 7])
    rows = executor.plan_rows("decode")
    spans = list(op_spans(rows, time_one_step(executor, sequence, "decode"), 0.0))
    executor.close()
    check_nesting(trace_events(spans)["traceEvents"])
    ops = [span for span in spans if "op" in span.details]
    assert [span.track for span in ops] == [row.device for row in rows] and {"cpu", "webgpu"} <= {o.track for o in ops}
    assert all(span.length_s > 0 for span in ops)
    moved = [span.details["moved_bytes"] for span in ops if span.kind == "copy" and "moved_bytes" in span.details]
    assert moved and all(size > 0 for size in moved)


def test_what_other_threads_do_for_longer_than_a_token_does_not_overlap() -> None:
    times = TokenTimes(1.0, 0.1, StepSpans(0.2, 0.5, 0.0, finish_s=1.5, submit_s=0.1), 0.2)
    spans = list(token_spans([times] * 3, 0.0, "wait"))
    check_nesting(trace_events(spans)["traceEvents"])
    assert sum(span.length_s for span in spans if span.track == FINISH) == pytest.approx(4.5)


def test_a_reply_that_the_model_ends_is_told_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    every_id = frozenset(range(engine.info.vocab_size))
    monkeypatch.setattr(type(engine.tokenizer), "stop_ids", property(lambda _: every_id))
    spans, notices = record(engine, 2, 3)
    assert any("ends after 0 tokens" in notice for notice in notices)
    assert not any(span.kind == "token" for span in spans)


def test_a_context_that_is_too_small_is_refused(engine: Engine) -> None:
    with pytest.raises(ContextFull):
        record(engine, engine.info.context, 1)


@pytest.mark.gpu
def test_without_timestamps_the_reply_is_traced_and_that_is_told(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama"), device="webgpu")
    engine.executor.caps = replace(engine.executor.caps, timestamps=False)  # type: ignore[attr-defined]
    spans, notices = record(engine, 3, 2)
    engine.close()
    assert [span.name for span in spans if span.kind == "token"] == ["token 1", "token 2"]
    assert len(notices) == 2 and all("no timestamps" in notice for notice in notices)


# The file


def test_the_file_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    check_place(path)
    assert path.read_text() == "old"
    write_trace([Span(ENGINE, "é", 0.0, 1e-6, "x")], path)
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"][-1]["name"] == "é"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("place", "why"), [("none/t.json", "No such file"), ("", "is no file"), ("a\0b", "null")])
def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, place: str, why: str) -> None:
    for attempt in (check_place, lambda path: write_trace([], path)):
        with pytest.raises(NotWritten, match=why) as error:
            attempt(tmp_path / place)
        assert "\n" not in str(error.value)


def test_on_a_full_disk_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(NotWritten, match=r"trace\.json: No space left on device"):
        write_trace([], path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
