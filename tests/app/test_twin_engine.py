"""Twin lanes through the real engine thread, with the tiny Qwen 3 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.engine_events import AppEvent, ChangeLoras, Failed, Generate, Load, Loaded, LorasChanged, ManyEvent
from app.engine_thread import EngineThread
from app.model_list import resolve_adapter
from app.twin_command import parse_twin
from app.twin_engine import GapEvent, GenerateTwin, SetTwin, TwinSet
from inference import Engine
from inference.events import Finished, Token
from inference.hub import Store
from inference.sampling import Sampling
from inference.twin_events import Divergence, KlDivergence, NoKlDivergence
from tests.app.test_lora_engine import GREEDY, HELLO, ONE, QWEN3, TINY, TWO, reply, wait

WILD = Sampling(temperature=5, top_k=0, top_p=1, min_p=0, seed=4)
LONG = ({"role": "user", "content": "The sea and the boat. " * 20},)


@pytest.fixture
def engines() -> list[Engine]:
    """Those that the thread has opened."""
    return []


@pytest.fixture
def thread(tmp_path: Path, engines: list[Engine]) -> Iterator[EngineThread]:
    def open_engine(path: str, kv: str, progress: Callable[..., None], **options: Any) -> Engine:
        engines.append(Engine.open(path, kv=kv, progress=progress, **{"device": "cpu"} | options))
        return engines[-1]

    thread = EngineThread(
        lambda model, kv, progress, cancelled: model,
        open_engine,
        partial(resolve_adapter, store=Store(tmp_path, tmp_path)),
    )
    thread.submit(Load(str(QWEN3), "contiguous"))
    wait(thread, Loaded)
    yield thread
    thread.shutdown()


def set_twin(thread: EngineThread, differences: str, loaded: Any = ()) -> TwinSet:
    thread.submit(SetTwin(parse_twin(differences, loaded)))
    told, events = wait(thread, TwinSet)
    if told.changes is None:  # the lane before is closed first
        told = next((each for each in events if isinstance(each, TwinSet) and each.changes), None)
        told = told or wait(thread, TwinSet)[0]
    assert not any(isinstance(each, Failed) for each in events), events
    return told


def twin(thread: EngineThread, messages: Any = HELLO, sampling: Sampling = GREEDY) -> list[AppEvent]:
    """The events of a turn of up to 12 tokens in both lanes."""
    thread.submit(GenerateTwin(1, messages, sampling, 12))
    events: list[AppEvent] = []
    while sum(isinstance(each, ManyEvent) and isinstance(each.event, Finished) for each in events) < 2:
        events += wait(thread, ManyEvent)[1]
        assert not any(isinstance(each, Failed) for each in events), events
    return events


def ids(events: list[AppEvent], lane: int) -> list[int]:
    inner = [each.event for each in events if isinstance(each, ManyEvent) and each.index == lane]
    return [event.id for event in inner if isinstance(event, Token) and event.id >= 0]


def gap(events: list[AppEvent], kind: type[Any]) -> list[Any]:
    return [each.event for each in events if isinstance(each, GapEvent) and isinstance(each.event, kind)]


def test_another_layout_shares_the_weights(thread: EngineThread, engines: list[Engine]) -> None:
    told = set_twin(thread, "kv=bdpa")
    assert (told.own, told.layout, len(engines)) == (False, "bdpa", 1)
    events = twin(thread, LONG)
    assert max(each.nats for each in gap(events, KlDivergence)) > 1e-6
    thread.submit(Generate(2, LONG, GREEDY, 12))
    _, alone = wait(thread, Finished)
    tokens = [each.event.id for each in alone if isinstance(getattr(each, "event", None), Token)]  # type: ignore[union-attr]
    assert ids(events, 0) == tokens


def test_other_sampling_has_its_own_draw(thread: EngineThread) -> None:
    set_twin(thread, "temperature=5 top_k=0 top_p=1 min_p=0 seed=4")
    events = twin(thread)
    assert ids(events, 0) == reply(thread)[0]
    assert gap(events, Divergence) and {each.nats for each in gap(events, KlDivergence)} == {0.0}
    set_twin(thread, "seed=9")
    assert ids(twin(thread, sampling=WILD), 0) == ids(events, 1)


def test_other_storage_takes_an_engine_and_off_gives_it_back(thread: EngineThread, engines: list[Engine]) -> None:
    told = set_twin(thread, "weights=q4")
    assert told.own and len(engines) == 2
    assert gap(twin(thread), KlDivergence)[0].nats > 1e-6
    thread.submit(SetTwin(None))
    assert wait(thread, TwinSet)[0].changes is None
    assert engines[1].memory().weights_bytes == 0 < engines[0].memory().weights_bytes


def test_strengths_of_an_adapter_in_use_share_the_engine(thread: EngineThread, engines: list[Engine]) -> None:
    thread.submit(ChangeLoras(((str(ONE), 1.0),)))
    applied = wait(thread, LorasChanged)[0].adapters
    assert not set_twin(thread, "lora=adapter1=-3", applied).own
    events = twin(thread)
    assert gap(events, KlDivergence)[0].nats > 1e-6
    assert ids(events, 0) == reply(thread)[0]
    told = set_twin(thread, f"lora={TWO}=0.5", applied)
    assert told.own and len(engines) == 2
    assert [(each.adapter.name, each.strength) for each in engines[1].adapters.applied] == [
        ("adapter1", 1.0),
        ("adapter2", 0.5),
    ]


def test_another_model_says_why_there_is_no_divergence(thread: EngineThread, engines: list[Engine]) -> None:
    told = set_twin(thread, f"model={TINY / 'llama'}")
    assert told.own and told.info is not None and told.info.family == "llama"
    events = twin(thread)
    (why,) = gap(events, NoKlDivergence)
    assert "token" in why.reason and not gap(events, KlDivergence)
    assert ids(events, 0) == reply(thread)[0]


def test_another_model_for_the_chat_closes_both(thread: EngineThread, engines: list[Engine]) -> None:
    set_twin(thread, "weights=q4")
    thread.submit(Load(str(TINY / "llama")))
    assert wait(thread, TwinSet)[0].changes is None
    wait(thread, Loaded)
    assert [engine.memory().weights_bytes > 0 for engine in engines] == [False, False, True]


def test_cancel_stops_both(thread: EngineThread) -> None:
    set_twin(thread, "kv=paged")
    thread.submit(GenerateTwin(3, HELLO, WILD))
    wait(thread, GapEvent)
    thread.cancel()
    reasons = [each.event.reason for each in _until_both_ended(thread)]
    assert reasons == ["cancelled", "cancelled"]


def _until_both_ended(thread: EngineThread) -> list[Any]:
    ended: list[Any] = []
    while len(ended) < 2:
        _, events = wait(thread, ManyEvent)
        ended += [each for each in events if isinstance(each, ManyEvent) and isinstance(each.event, Finished)]
    return ended
