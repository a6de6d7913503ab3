"""What operations and tokens take: the figures are of what ran, and measuring changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.errors import DeviceUnavailable
from inference.events import Prompted, Token, TokenTimes
from tests.inference.replies import GREEDY, IDS, reply

Tiny = Callable[[str], Path]
Phase = Literal["decode", "prefill"]
DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No medians: the machine may be slow."""
    monkeypatch.setattr("inference.op_times._BUDGET_S", 0)


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Engine]:
    engine = Engine.open(tiny("llama"), device=request.param)
    yield engine
    engine.close()


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_operation_of_the_plan_has_its_time(engine: Engine, phase: Phase) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    began = time.perf_counter()
    times = engine.time_ops(phase, sequence)
    took = time.perf_counter() - began
    assert len(times.ops) == len(engine.plan(phase))
    assert all(seconds > 0 for seconds in times.ops)
    assert times.steps * times.whole < took and sum(times.ops) < 2 * took
    rows = 1 if phase == "decode" else engine.executor.chunk
    assert (times.phase, times.rows, times.depth) == (phase, rows, len(IDS) - 1 if phase == "decode" else 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv", ["auto", "bdpa"])
def test_measuring_leaves_the_conversation_as_it_was(tiny: Tiny, device: Literal["cpu", "webgpu"], kv: str) -> None:
    engine = Engine.open(tiny("gemma3_text"), device=device, kv=kv)
    sequence, untouched = engine.sequence(), engine.sequence()
    for each in (sequence, untouched):
        each.append(IDS * 8)
    before = sequence.kv_stats()
    for phase in get_args(Phase):
        engine.time_ops(phase, sequence)
    assert sequence.kv_stats() == before
    assert sequence.token_ids == tuple(IDS * 8)
    # The last token was computed by itself instead of among others, which bdpa's integers may round in another way.
    found, expected = sequence.append([7, 8]), untouched.append([7, 8])
    assert np.linalg.norm(found - expected) < (2e-3 if kv == "bdpa" else 1e-4) * np.linalg.norm(expected)
    engine.close()


def test_an_empty_sequence_is_measured_and_stays_empty(engine: Engine) -> None:
    sequence = engine.sequence()
    assert engine.time_ops("decode", sequence).depth == 0
    assert sequence.token_ids == () and sequence.kv_stats().tokens == 0


@pytest.mark.gpu
def test_without_timestamps_it_says_so(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama"), device="webgpu")
    executor = engine.executor
    executor.caps = replace(executor.caps, timestamps=False)  # type: ignore[attr-defined]
    with pytest.raises(DeviceUnavailable, match="no timestamps"):
        engine.time_ops("decode", engine.sequence())
    engine.close()


def spans(times: TokenTimes) -> float:
    step = times.step
    return times.report_s + step.encode_s + step.wait_s + step.sample_s + times.text_s


@pytest.mark.alone
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0, logit_bias={5: 1.0})], ids=["device", "host"])
def test_the_spans_of_a_token_add_up_to_its_wall_time(engine: Engine, sampling: Sampling) -> None:
    walls, found = [], []
    last = 0.0
    for event in engine.generate(IDS, sampling, max_tokens=40):
        if isinstance(event, Token) and event.id >= 0:
            now = time.perf_counter()
            walls.append(now - last)
            found.append(event.times)
            last = now
            time.sleep(0.002)  # the caller's own work is part of the next token's time
    # By our own clock, and by the engine's; the system may take the processor away from between two spans of a few.
    pairs = list(zip(walls[1:], found[1:], strict=True))
    close = [
        spans(times) == pytest.approx(times.wall_s, rel=0.1) and times.wall_s == pytest.approx(wall, rel=0.1)
        for wall, times in pairs
    ]
    assert sum(close) >= 0.9 * len(close)
    assert all(times.report_s > 0.0019 for _, times in pairs)
    assert sum(map(spans, found[1:])) == pytest.approx(sum(walls[1:]), rel=0.1)


def test_the_host_and_the_device_have_spans_of_their_own(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama"), device="cpu")
    step = [event.times.step for event in reply(engine) if isinstance(event, Token) and event.id >= 0]
    assert all(each.wait_s > 0 and each.sample_s > 0 and not each.encode_s for each in step)
    engine.close()


@pytest.mark.gpu
def test_commands_are_timed_on_the_gpu(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama"), device="webgpu")
    step = [event.times.step for event in reply(engine) if isinstance(event, Token) and event.id >= 0][1:-1]
    assert all(each.encode_s > 0 and each.wait_s > 0 and not each.sample_s for each in step)
    assert sum(each.finish_s for each in step) > 0 and sum(each.submit_s for each in step) > 0
    engine.close()


def test_the_prompt_is_told_as_it_is_read(engine: Engine) -> None:
    sequence = engine.sequence()
    assert reply(engine, IDS, sequence=sequence)[1] == Prompted(tuple(IDS), 0)
    longer = (*sequence.token_ids, 9, 10)
    assert reply(engine, longer, sequence=sequence)[1] == Prompted(longer, len(longer) - 2)
