"""The bench of batches on a tiny model: its figures follow from its runs."""

from __future__ import annotations

import json
import statistics

import pytest

from inference import Engine
from inference.bench_batch import run
from inference.errors import BatchRefused, ContextFull


def test_figures_follow_from_the_runs(engine: Engine) -> None:
    heard: list[str] = []
    report = run(engine, (1, 3), depth=4, generate=3, repeats=2, progress=heard.append)
    assert [(batch.sequences, len(batch.runs_s)) for batch in report.batches] == [(1, 2), (3, 2)]
    for batch in report.batches:
        assert batch.tps == pytest.approx(3 * batch.sequences / statistics.median(batch.runs_s))
        assert batch.times_one == pytest.approx(batch.tps / report.one_tps)
        assert (batch.dispatches > 0) == (engine.info.device == "webgpu")
    # However many they are, a step has as many dispatches.
    assert len({batch.dispatches for batch in report.batches}) == 1
    assert "3 together: 3 of 3 steps" in heard
    assert json.loads(json.dumps(report.to_json()))["batches"][1]["sequences"] == 3
    assert report.rows[3][0] == "3" and len({len(row) for row in report.rows}) == 1


def test_what_cannot_be_is_refused_before_anything_is_measured(engine: Engine) -> None:
    with pytest.raises(ContextFull):
        run(engine, (2,), depth=engine.info.context, generate=3)
    with pytest.raises(BatchRefused, match="one step takes 1 to"):
        run(engine, (engine.executor.max_batch + 1,), generate=1, repeats=1)
