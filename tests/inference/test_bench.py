"""The bench on tiny models: its figures follow from its runs, and it measures what it says."""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference import Engine, bench
from inference.errors import Cancelled, ContextFull

Tiny = Callable[[str], Path]


@pytest.fixture
def engine(tiny: Tiny) -> Iterator[Engine]:
    opened = Engine.open(tiny("llama") / "gguf" / "model-q8_0.gguf", device="cpu", kv="contiguous")
    yield opened
    opened.close()


def test_figures_follow_from_the_runs(engine: Engine) -> None:
    report = bench.run(engine, prompts=(5, 9), generate=3, depths=(0, 4), repeats=3)
    assert [(each.tokens, len(each.runs_s)) for each in report.prefill] == [(5, 3), (9, 3)]
    assert [(each.depth, each.tokens, len(each.runs_s)) for each in report.decode] == [(0, 3, 3), (4, 3, 3)]
    for prefill in report.prefill:
        assert prefill.ttft_s == statistics.median(prefill.runs_s)
        assert prefill.tps == pytest.approx(prefill.tokens / prefill.ttft_s)
    for decode in report.decode:
        assert decode.tps == pytest.approx(decode.tokens / statistics.median(decode.runs_s))
    assert report.memory.weights_bytes > 0
    assert report.memory.host_peak_bytes > 0
    assert report.notices == ()


def test_stop_ids_do_not_end_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    every_id = frozenset(range(engine.info.vocab_size))
    monkeypatch.setattr(type(engine.tokenizer), "stop_ids", property(lambda _: every_id))
    assert bench.run(engine, prompts=(2,), generate=5, repeats=1).decode[0].tokens == 5


def test_the_report_is_text_for_people_and_plain_data(engine: Engine) -> None:
    report = bench.run(engine, prompts=(5,), generate=2, repeats=1)
    rows = dict(report.rows)
    assert rows["prompt of 5"].endswith(f"first token after {report.prefill[0].ttft_s:.3f} s")
    assert rows["decode after 0"].endswith("over 2 tokens")
    assert "  host, per token" not in rows
    data = json.loads(json.dumps(report.to_json()))
    assert data["decode"][0]["tps"] == report.decode[0].tps
    assert data["device"] == "cpu"
    assert data["kv_layout"] == rows["KV cache"] == "contiguous"


def test_the_cache_is_filled_to_the_depth_and_freed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    stream = engine.executor.stream

    def watched(cache, ids, request):  # type: ignore[no-untyped-def]
        lengths.append((cache.length, len(ids)))
        return stream(cache, ids, request)

    monkeypatch.setattr(engine.executor, "stream", watched)
    bench.run(engine, prompts=(), generate=2, depths=(7,), repeats=2)
    assert lengths == [(7, 1)] * 3
    assert engine.memory().kv_bytes == 0


def test_progress_may_cancel(engine: Engine) -> None:
    heard: list[str] = []

    def cancel_while_decoding(stage: str) -> None:
        heard.append(stage)
        if stage == "decode after 0, run 1 of 1: 2 of 8 tokens":
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        bench.run(engine, prompts=(3,), generate=8, repeats=1, progress=cancel_while_decoding)
    assert heard[0] == "prompt of 3, warming up: done"
    assert engine.memory().kv_bytes == 0


@pytest.mark.parametrize("sizes", [{"prompts": (10**6,)}, {"depths": (10**6,)}, {"generate": 10**6}])
def test_what_does_not_fit_is_refused_before_anything_runs(engine: Engine, sizes: dict[str, object]) -> None:
    heard: list[str] = []
    with pytest.raises(ContextFull):
        bench.run(engine, **{"prompts": (3,), "generate": 2, **sizes}, progress=heard.append)  # type: ignore[arg-type]
    assert heard == []


@pytest.mark.gpu
def test_on_webgpu_the_host_cost_is_told(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama") / "gguf" / "model-q8_0.gguf", device="webgpu", dtype="f32")
    try:
        report = bench.run(engine, prompts=(5,), generate=4)
        dispatches = sum(row.dispatches for row in engine.plan("decode"))
    finally:
        engine.close()
    decode = report.decode[0]
    assert decode.dispatches_per_token == dispatches > 0
    assert decode.encode_us_per_dispatch == pytest.approx(decode.encode_us / dispatches)
    assert decode.encode_us > 0
    cut = "WebGPU runs on the processor here, so less is measured: 1 run of each instead of 3"
    assert report.notices == ((cut,) if engine.info.software else ())
    assert "us each" in dict(report.rows)["  host, per token"]
