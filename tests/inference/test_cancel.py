"""Replies that are cancelled or left: nothing comes after, and what was said stays usable."""

from __future__ import annotations

import threading

import pytest

from inference import Engine
from inference.events import Event, Token
from tests.inference.replies import GREEDY, IDS, ids_of, reason_of, reply


@pytest.mark.parametrize("after", [1, 3])
def test_cancel_from_another_thread(engine: Engine, after: int) -> None:
    sequence = engine.sequence()
    events: list[Event] = []
    seen = 0
    for event in engine.generate(IDS, GREEDY, sequence=sequence):
        events.append(event)
        if isinstance(event, Token):
            seen += 1
            if seen == after:
                thread = threading.Thread(target=engine.cancel)
                thread.start()
                thread.join()
    assert reason_of(events) == "cancelled"
    sampled = ids_of(events)
    assert sampled == ids_of(reply(engine))[:after]
    assert sequence.token_ids[: len(IDS)] == tuple(IDS)
    assert set(sequence.token_ids[len(IDS) :]) <= set(sampled)
    # Nothing of it is left: the next reply in the same sequence is the one that a fresh one gets.
    turn = [*sequence.token_ids, 100]
    assert ids_of(reply(engine, turn, sequence=sequence)) == ids_of(reply(engine, turn))
    sequence.close()


def test_cancel_before_the_first_event_is_asked_for(engine: Engine) -> None:
    events = engine.generate(IDS, GREEDY)
    engine.cancel()
    heard = list(events)
    assert reason_of(heard) == "cancelled" and ids_of(heard) == []
    assert ids_of(reply(engine)), "the next reply is not cancelled"


def test_cancel_while_the_prompt_is_computed(engine: Engine) -> None:
    chunk = engine._executor.chunk
    engine_ids = [(3 * i) % 500 for i in range(128)]
    if chunk >= len(engine_ids):
        pytest.skip("this device takes the whole prompt in one step")
    sequence = engine.sequence()
    events = []
    for event in engine.generate(engine_ids, GREEDY, sequence=sequence):
        events.append(event)
        engine.cancel()
    assert reason_of(events) == "cancelled" and ids_of(events) == []
    assert sequence.token_ids == tuple(engine_ids[:chunk])
    sequence.close()


def test_a_cancelled_engine_generates_again(engine: Engine) -> None:
    engine.cancel()
    assert reason_of(reply(engine)) == "length"


def test_leaving_a_reply_half_read_keeps_its_sequence_right(engine: Engine) -> None:
    sequence = engine.sequence()
    events = engine.generate(IDS, GREEDY, sequence=sequence)
    sampled = []
    for event in events:
        if isinstance(event, Token):
            sampled.append(event.id)
            if len(sampled) == 4:
                break
    events.close()  # type: ignore[attr-defined]
    assert sequence.token_ids == (*IDS, *sampled[:-1])
    assert ids_of(reply(engine, [*IDS, *sampled], sequence=sequence)) == ids_of(reply(engine, max_tokens=16))[4:]
    sequence.close()
