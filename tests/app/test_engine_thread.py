from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest

from app.engine_events import AppEvent, Failed, Generate, Load, Loaded, LoadStarted, ReplyEvent, Unloaded
from app.engine_thread import EngineThread
from inference.errors import ContextFull
from inference.events import Finished, Loading, Token
from inference.sampling import Sampling
from tests.app.scripted_engine import MIB, Script, ScriptedEngine, opener, resolve, resolve_adapter

HELLO = ({"role": "user", "content": "hello"},)


class Thread:
    """An engine thread over scripted engines, with its events gathered."""

    def __init__(self, *scripts: Script) -> None:
        open_engine, self.engines = opener(*scripts)
        self.thread = EngineThread(resolve, open_engine, resolve_adapter)
        self.events: list[AppEvent] = []

    def until(self, kind: type[AppEvent] | type[Finished] | type[Token], count: int = 1) -> AppEvent:
        """Drain until that many events of a kind are there; the last of them."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self.events += self.thread.drain()
            found = [
                event
                for event in self.events
                if isinstance(event, kind) or (isinstance(event, ReplyEvent) and isinstance(event.event, kind))
            ]
            if len(found) >= count:
                return found[count - 1]
            time.sleep(0.005)
        raise AssertionError(f"no {kind.__name__} among {self.events}")

    def text(self, reply: int) -> str:
        events = [event.event for event in self.events if isinstance(event, ReplyEvent) and event.reply == reply]
        return "".join(event.text for event in events if isinstance(event, Token))


@pytest.fixture
def start() -> Iterator[Callable[..., Thread]]:
    threads: list[Thread] = []

    def make(*scripts: Script) -> Thread:
        threads.append(Thread(*scripts))
        return threads[-1]

    yield make
    for each in threads:
        each.thread.shutdown()


def engine_of(thread: Thread, index: int = 0) -> ScriptedEngine:
    return thread.engines[index]


def test_a_load_reports_progress_and_then_the_model(start: Callable[..., Thread]) -> None:
    thread = start(Script(model="One"))
    thread.thread.submit(Load("one"))
    loaded = thread.until(Loaded)
    assert isinstance(loaded, Loaded)
    assert (loaded.source, loaded.title, len(loaded.decode)) == ("one", "One", 27)
    assert [type(event) for event in thread.events] == [LoadStarted, Loading, Loading, Loading, Loaded]


def test_a_reply_arrives_whole_and_in_order(start: Callable[..., Thread]) -> None:
    thread = start(Script(pieces=tuple(f"{i} " for i in range(500))))
    thread.thread.submit(Load("one"))
    thread.thread.submit(Generate(7, HELLO, Sampling()))
    thread.until(Finished)
    assert thread.text(7) == "".join(f"{i} " for i in range(500))


def test_switching_closes_the_old_engine_before_the_new_one_opens(start: Callable[..., Thread]) -> None:
    thread = start(Script(model="One"), Script(model="Two"))
    thread.thread.submit(Load("one"))
    thread.until(Loaded)
    thread.thread.submit(Load("two"))
    thread.until(Loaded, 2)
    unloaded = thread.until(Unloaded)
    assert unloaded == Unloaded("One", 129 * MIB)
    assert engine_of(thread).closed
    kinds = [type(event) for event in thread.events[5:]]
    assert kinds.index(Unloaded) < kinds.index(Loading)


def test_a_model_that_is_not_found_leaves_the_loaded_one(start: Callable[..., Thread]) -> None:
    thread = start(Script())
    thread.thread.submit(Load("one"))
    thread.thread.submit(Load("missing"))
    failed = thread.until(Failed)
    assert isinstance(failed, Failed)
    assert "missing" in failed.message
    thread.thread.submit(Generate(1, HELLO, Sampling()))
    thread.until(Finished)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ContextFull("9 tokens do not fit"), "9 tokens do not fit"), (RuntimeError("boom"), "Unexpected error")],
)
def test_an_error_ends_the_reply_and_not_the_thread(
    start: Callable[..., Thread], error: Exception, expected: str
) -> None:
    thread = start(Script(error=error, error_after=1))
    thread.thread.submit(Load("one"))
    thread.thread.submit(Generate(1, HELLO, Sampling()))
    failed = thread.until(Failed)
    assert isinstance(failed, Failed)
    assert expected in failed.message
    assert not failed.cancelled
    assert thread.text(1) == "Hello"
    thread.thread.submit(Load("two"))
    thread.until(Loaded, 2)


def test_cancel_stops_a_reply_and_the_next_one_works(start: Callable[..., Thread]) -> None:
    thread = start(Script(pieces=("word ",) * 1000, tokens_per_s=200))
    thread.thread.submit(Load("one"))
    thread.thread.submit(Generate(1, HELLO, Sampling()))
    thread.until(Token, 3)
    thread.thread.cancel()
    finished = thread.until(Finished)
    assert isinstance(finished, ReplyEvent)
    assert isinstance(finished.event, Finished)
    assert finished.event.reason == "cancelled"
    assert len(thread.text(1)) < 5000
    thread.thread.submit(Generate(2, HELLO, Sampling(), max_tokens=3))
    thread.until(Finished, 2)
    assert thread.text(2) == "word word word "


def test_cancel_stops_a_load_and_drops_what_waits(start: Callable[..., Thread]) -> None:
    thread = start(Script(load_steps=1000, step_s=0.01))
    thread.thread.submit(Load("one"))
    thread.until(Loading)
    thread.thread.submit(Load("two"))
    thread.thread.cancel()
    thread.until(Failed, 2)
    failed = [event for event in thread.events if isinstance(event, Failed)]
    assert [event.cancelled for event in failed] == [True, True]
    assert not [event for event in thread.events if isinstance(event, LoadStarted) and event.model == "two"]


def test_without_a_model_a_message_is_refused_in_words(start: Callable[..., Thread]) -> None:
    thread = start(Script())
    thread.thread.submit(Generate(1, HELLO, Sampling()))
    failed = thread.until(Failed)
    assert isinstance(failed, Failed)
    assert "No model is loaded" in failed.message


def test_shutdown_closes_the_engine_while_it_generates() -> None:
    thread = Thread(Script(pieces=("word ",) * 10000, tokens_per_s=100))
    thread.thread.submit(Load("one"))
    thread.thread.submit(Generate(1, HELLO, Sampling()))
    thread.until(Token)
    thread.thread.shutdown()
    assert engine_of(thread).closed


def test_what_stays_is_not_searched_for_garbage_until_the_model_goes(start: Callable[..., Thread]) -> None:
    thread = start(Script())
    thread.thread.submit(Load("a"))
    thread.until(Loaded)
    assert gc.get_freeze_count() > 0
    thread.thread.shutdown()
    assert gc.get_freeze_count() == 0
