"""Layouts side by side, on tiny models: the figures are those of the layouts, and of the text as it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine
from inference.bench_layouts import STEP_TOKENS, TEXT_TOKENS, measure_quality, run, text_ids
from inference.errors import Cancelled, ContextFull, LayoutUnavailable

Tiny = Callable[[str], Path]


@pytest.fixture
def open_engine(tiny: Tiny) -> Callable[..., Engine]:
    """Opens the tiny llama; every engine opened is in `open_engine.opened`."""
    opened: list[Engine] = []

    def open_it(layout: str, device: Any, family: str = "llama", context: int = 400) -> Engine:
        path = tiny(family) / "gguf" / "model-f16.gguf"
        opened.append(Engine.open(path, kv=layout, device=device or "cpu", context=context))
        return opened[-1]

    open_it.opened = opened  # type: ignore[attr-defined]
    return open_it


def test_the_text_is_long_enough_for_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        engine = Engine.open(path, device="cpu")
        ids = text_ids(engine)
        engine.close()
        assert len(ids) > TEXT_TOKENS > 1500


def test_quality_is_the_divergence_from_contiguous(open_engine: Any) -> None:
    """Against logits of the whole text in one step, which no quantised past can have influenced."""
    engine = open_engine("contiguous", "cpu")
    ids = text_ids(engine)[:380]
    found = measure_quality(engine, ("contiguous", "paged", "tiered-int4", "bdpa"), ids, lambda _: None)
    logits = engine.logits(ids).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    perplexity = math.exp(-np.mean(log[np.arange(len(ids) - 1), ids[1:]]))
    assert found["contiguous"].kl == 0 and found["contiguous"].perplexity_difference == 0
    assert found["contiguous"].perplexity == pytest.approx(perplexity, rel=1e-4)
    assert abs(found["paged"].kl) < 1e-9
    for quantised in (found["tiered-int4"], found["bdpa"]):
        assert quantised.kl > 1e-7
        assert quantised.perplexity_difference == pytest.approx(quantised.perplexity - found["contiguous"].perplexity)


def test_quantised_tiers_are_read_while_the_text_goes_on(open_engine: Any) -> None:
    """Up to where the first token leaves the hot tier nothing differs; a step later something does."""
    engine = open_engine("contiguous", "cpu")
    ids = text_ids(engine)
    hot = 256 + STEP_TOKENS
    assert measure_quality(engine, ("tiered-int4",), ids[:hot], lambda _: None)["tiered-int4"].kl < 1e-9
    assert measure_quality(engine, ("tiered-int4",), ids[: hot + 1], lambda _: None)["tiered-int4"].kl > 1e-9


def test_bytes_are_those_of_the_cache(open_engine: Any) -> None:
    report = run(open_engine, ("contiguous", "tiered-int8", "bdpa"), depth=300, generate=2)
    by_name = {result.layout: result.cost for result in report.layouts}
    engine = open_engine("bdpa", None)
    whole = 2 * engine.config.kv_size * 4 * engine.config.num_layers
    assert by_name["contiguous"].used_bytes_per_token == whole
    assert by_name["contiguous"].allocated_bytes_per_token == whole * 400 / 301
    # 300 - 256 tokens are cold in the step that adds the last one.
    assert by_name["tiered-int8"].used_bytes_per_token < whole
    sequence = engine.sequence()
    sequence.append(text_ids(engine)[:301])
    assert by_name["bdpa"].used_bytes_per_token == sequence.kv_stats().used_bytes / 301
    assert (report.depth, report.generated, report.text_tokens) == (300, 2, 400)
    for result in report.layouts:
        assert result.cost.decode_tps == pytest.approx(2 / sorted(result.cost.runs_s)[1])


def test_what_a_model_cannot_use_is_told_with_the_reason(open_engine: Any) -> None:
    report = run(open_engine, ("ring", "paged"), depth=10, generate=1)
    ring, paged = report.layouts
    assert "needs layers with a sliding window" in ring.unavailable and ring.cost is None
    assert not paged.unavailable
    head, *rows = report.rows
    assert rows[0] == ("ring", *"------", ring.unavailable)
    assert len(rows[1]) == len(head) and rows[1][0] == "paged"
    assert json.loads(json.dumps(report.to_json()))["layouts"][0]["unavailable"] == ring.unavailable
    with pytest.raises(LayoutUnavailable, match="sliding window"):
        run(open_engine, ("ring",))


def test_engines_never_share_the_memory(open_engine: Any) -> None:
    def open_alone(layout: str, device: Any) -> Engine:
        assert all(engine.memory().weights_bytes == 0 for engine in open_engine.opened)
        return open_engine(layout, device)

    def cancel(stage: str) -> None:
        if stage.startswith("paged: 1 of"):
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        run(open_alone, ("contiguous", "paged"), depth=5, generate=2, progress=cancel)
    assert len(open_engine.opened) == 3
    assert open_engine.opened[-1].memory().weights_bytes == 0


def test_layers_of_several_layouts_are_named(open_engine: Any) -> None:
    report = run(lambda layout, device: open_engine(layout, device, "gemma3_text"), ("ring", "paged"), 50, 1)
    assert [result.by_layer for result in report.layouts] == ["7 ring, 1 paged", ""]
    assert report.layouts[0].cost.used_bytes_per_token <= report.layouts[1].cost.used_bytes_per_token


def test_a_depth_beyond_the_context_is_refused(open_engine: Any) -> None:
    with pytest.raises(ContextFull):
        run(open_engine, ("paged", "bdpa"), depth=400, generate=2)
    assert run(open_engine, ("paged", "bdpa"), generate=2).depth == 397
