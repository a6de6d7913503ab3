"""LoRA adapters through the real engine thread, with the tiny Qwen 3 on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.engine_events import AppEvent, ChangeLoras, Failed, Generate, Load, Loaded, LorasChanged, ReplyEvent
from app.engine_thread import EngineThread
from app.model_list import resolve_adapter
from inference import Engine
from inference.events import Finished, Notice, Stats, Token
from inference.hub import Store
from inference.sampling import Sampling

TINY = Path(__file__).parents[1] / "data" / "tiny"
QWEN3, ONE, TWO = TINY / "qwen3", TINY / "qwen3" / "lora" / "adapter1", TINY / "qwen3" / "lora" / "adapter2"
HELLO = ({"role": "user", "content": "hello"},)
GREEDY = Sampling(temperature=0)


@pytest.fixture
def thread(tmp_path: Path) -> Iterator[EngineThread]:
    thread = EngineThread(
        lambda model, kv, progress, cancelled: model,
        lambda path, kv, progress, **_: Engine.open(path, device="cpu", kv=kv, progress=progress),
        partial(resolve_adapter, store=Store(tmp_path, tmp_path)),
    )
    thread.submit(Load(str(QWEN3)))
    yield thread
    thread.shutdown()


def wait(thread: EngineThread, kind: type[Any]) -> tuple[Any, list[AppEvent]]:
    """The next event of a kind, and all until then."""
    events: list[AppEvent] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        events += thread.drain()
        for event in events:
            inner = event.event if isinstance(event, ReplyEvent) else event
            if isinstance(inner, kind):
                return inner, events
        time.sleep(0.005)
    raise AssertionError(f"no {kind.__name__} among {events}")


def reply(thread: EngineThread) -> tuple[list[int], list[str], Stats]:
    """Token ids, notices and the last figures of a reply."""
    thread.submit(Generate(1, HELLO, GREEDY, 12))
    _, events = wait(thread, Finished)
    inner = [event.event for event in events if isinstance(event, ReplyEvent)]
    ids = [event.id for event in inner if isinstance(event, Token)]
    notices = [event.text for event in inner if isinstance(event, Notice)]
    return ids, notices, [event for event in inner if isinstance(event, Stats)][-1]


def change(thread: EngineThread, *strengths: tuple[str | Path, float | None]) -> LorasChanged:
    thread.submit(ChangeLoras(tuple((str(name), strength) for name, strength in strengths)))
    return wait(thread, LorasChanged)[0]


def opened_with(*loras: tuple[Path, float]) -> list[int]:
    """What an engine says that was opened with these adapters."""
    engine = Engine.open(QWEN3, device="cpu", loras=loras)
    events = list(engine.generate(list(HELLO), GREEDY, max_tokens=12))
    engine.close()
    return [event.id for event in events if isinstance(event, Token)]


def test_load_strength_reply_failure_and_drop(thread: EngineThread) -> None:
    loaded, _ = wait(thread, Loaded)
    plain, _, _ = reply(thread)
    assert plain == opened_with()

    changed = change(thread, (ONE, 1.0))
    assert [(each.adapter.name, each.strength) for each in changed.adapters] == [("adapter1", 1.0)]
    assert [row.name for row in changed.prefill if row.kind == "lora" and row.layer == 0] == [
        "attention.qkv.lora",
        "attention.output.lora",
        "feed_forward.gate_up.lora",
        "feed_forward.down.lora",
    ]
    whole, notices, stats = reply(thread)
    assert whole == opened_with((ONE, 1.0)) != plain
    assert any("computed anew: the adapters have changed" in notice for notice in notices)
    assert stats.memory.weights_by_format["adapters f32"] > 0

    change(thread, (ONE, 0.25), (TWO, 1.5))
    both, _, _ = reply(thread)
    assert both == opened_with((ONE, 0.25), (TWO, 1.5)) not in (plain, whole)

    thread.submit(ChangeLoras(((str(TWO), 0.5), (str(TINY / "llama" / "lora" / "adapter1"), 1.0))))
    failed, _ = wait(thread, Failed)
    assert "adapter1" in failed.message and "\n" not in failed.message
    assert reply(thread)[0] == both, "nothing of a change that failed is in effect"

    dropped = change(thread, (ONE, None), (TWO, None))
    assert dropped.adapters == () and dropped.decode == loaded.decode and dropped.prefill == loaded.prefill
    assert reply(thread)[0] == plain
