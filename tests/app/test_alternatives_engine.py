"""Several replies at once through the real engine, with the tiny Qwen 3 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.chat_app import ChatApp
from app.engine_events import AppEvent, Failed, Generate, GenerateMany, Load, Loaded, ManyEvent
from app.engine_thread import EngineThread
from app.settings import Sources
from app.start import Start
from app.store.store import Store
from inference import Engine
from inference.events import Finished, Token
from inference.sampling import Sampling
from tests.app.conftest import FIT
from tests.app.scripted_engine import resolve_adapter
from tests.app.test_alternatives import at_tabs, closed, figures, replies, screen
from tests.app.test_branches import shown, tell
from tests.app.test_chat import answered, chat, until
from tests.app.test_lora_engine import HELLO, QWEN3, wait

SAMPLINGS = tuple(Sampling(temperature=5, top_k=0, top_p=1, min_p=0, seed=seed) for seed in (1, 2, 3))


@pytest.fixture
def thread() -> EngineThread:
    def open_engine(path: str, kv: str, progress: Callable[..., None], gpu_layers: int | None) -> Engine:
        return Engine.open(path, device="cpu", kv=kv, progress=progress)

    return EngineThread(lambda model, kv, progress, cancelled: model, open_engine, resolve_adapter)


def reasons(events: list[AppEvent]) -> dict[int, str]:
    many = [each for each in events if isinstance(each, ManyEvent)]
    return {each.index: each.event.reason for each in many if isinstance(each.event, Finished)}


def until_all_ended(thread: EngineThread, count: int) -> list[AppEvent]:
    events: list[AppEvent] = []
    while len(reasons(events)) < count:
        events += wait(thread, ManyEvent)[1]
        assert not any(isinstance(each, Failed) for each in events), events
    return events


def ids(events: list[AppEvent], index: int) -> list[int]:
    many = [each.event for each in events if isinstance(each, ManyEvent) and each.index == index]
    return [event.id for event in many if isinstance(event, Token) and event.id >= 0]


def test_each_is_the_reply_that_it_would_be_alone(thread: EngineThread) -> None:
    thread.submit(Load(str(QWEN3)))
    wait(thread, Loaded)
    thread.submit(GenerateMany(5, HELLO, SAMPLINGS, max_tokens=12))
    events = until_all_ended(thread, 3)
    found = [ids(events, index) for index in range(3)]
    assert len({tuple(each) for each in found}) == 3
    for sampling, expected in zip(SAMPLINGS, found, strict=True):
        thread.submit(Generate(1, HELLO, sampling, max_tokens=12))
        _, alone = wait(thread, Finished)
        tokens = [getattr(each, "event", None) for each in alone]
        assert [token.id for token in tokens if isinstance(token, Token) and token.id >= 0] == expected
    thread.shutdown()


def test_a_stop_ends_all_and_the_conversation_goes_on(thread: EngineThread) -> None:
    thread.submit(Load(str(QWEN3)))
    wait(thread, Loaded)
    thread.submit(GenerateMany(5, HELLO, SAMPLINGS))
    events: list[AppEvent] = []
    while not all(len(ids(events, index)) > 2 for index in range(3)):
        events += thread.drain()
    thread.cancel()
    while (ended := reasons(events)) != dict.fromkeys(range(3), "cancelled"):
        events += thread.drain()
        assert "length" not in ended.values() and not any(isinstance(each, Failed) for each in events)
    thread.submit(Generate(1, HELLO, SAMPLINGS[0], max_tokens=3))
    assert wait(thread, Finished)[0].reason == "length"
    thread.shutdown()


def test_one_can_be_stopped_while_the_others_go_on(thread: EngineThread) -> None:
    thread.submit(Load(str(QWEN3)))
    wait(thread, Loaded)
    thread.submit(GenerateMany(5, HELLO, SAMPLINGS, max_tokens=200))
    events: list[AppEvent] = []
    while len(ids(events, 1)) < 3:
        events += thread.drain()
    thread.stop_reply(1)
    while len(reasons(events)) < 3:
        events += thread.drain()
    assert reasons(events)[1] == "cancelled" and "cancelled" not in (reasons(events)[0], reasons(events)[2])
    thread.shutdown()


def test_a_prompt_longer_than_the_context_is_refused(thread: EngineThread) -> None:
    thread.submit(Load(str(QWEN3)))
    wait(thread, Loaded)
    thread.submit(GenerateMany(5, ({"role": "user", "content": "word " * 5000},), SAMPLINGS))
    failed, events = wait(thread, Failed)
    assert not failed.cancelled and "context" in failed.message
    assert ids(events, 0) == []
    thread.shutdown()


async def test_one_is_kept_and_the_conversation_goes_on_from_it(thread: EngineThread, tmp_path: Path) -> None:
    store = Store(tmp_path / "history.db")
    sources = Sources(tmp_path / "settings.toml", {"theme": "glass", "temperature": 5.0, "max_tokens": 10, "seed": 1})
    start = Start(str(QWEN3), sampling=SAMPLINGS[0], max_tokens=10)
    app = ChatApp(thread, store, lambda device: [], lambda path, device: FIT, sources, start)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        await tell(pilot, "/alternatives 4")
        await until(pilot, lambda: at_tabs(pilot))
        await until(pilot, lambda: all(each.ended for each in screen(pilot)._candidates))
        await until(pilot, lambda: "10 tokens" in figures(pilot) and "all: 40 tokens" in figures(pilot))
        await pilot.press("right", "right", "enter")
        await closed(pilot)
        made = replies(pilot)
        assert len(made) == 5 and len({each.text for each in made}) >= 4
        await until(pilot, lambda: "< 4/5 >" in shown(pilot))
        assert chat(pilot).conversation.tree.active == made[3].id
        await tell(pilot, "and then?")
        await answered(pilot, 2)
        path = chat(pilot).conversation.tree.path()
        assert [node.id for node in path][1] == made[3].id and len(path) == 4
    assert store.close() == ""


async def ready(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: chat(pilot).model.loaded is not None)
