"""Several replies at once: each is what it is alone, whatever joins, leaves or is shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.errors import BatchRefused, ContextFull
from inference.events import Event, Finished, Notice, Prefill, Prompted, Stats, Token
from tests.inference.replies import CLOSE, GREEDY, IDS, ids_of, reason_of, reply, text_of

SEEDED = Sampling(temperature=1.0, top_k=40, top_p=1.0, min_p=0.0, repetition=1.1, presence=0.3, seed=11)
PROMPTS = [IDS, [*IDS, 17, 300], [*IDS[:6], 44, 21, 9], [401], IDS]


def by_number(pairs: Iterable[tuple[int, Event]]) -> dict[int, list[Event]]:
    """The events of each reply, in order."""
    events: dict[int, list[Event]] = {}
    for number, event in pairs:
        events.setdefault(number, []).append(event)
    return dict(sorted(events.items()))


def together(engine: Engine, prompts: Sequence[Any], *options: Any, **more: Any) -> list[list[Event]]:
    """All events of each reply."""
    return list(by_number(engine.generate_many(prompts, *options, **more)).values())


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_each_is_as_alone(engine: Engine, sampling: Sampling) -> None:
    for prompt, events in zip(PROMPTS, together(engine, PROMPTS, sampling, 10), strict=True):
        alone = reply(engine, prompt, sampling, 10)
        assert ids_of(events) == ids_of(alone) and text_of(events) == text_of(alone)
        assert reason_of(events) == reason_of(alone)
        assert Prompted(tuple(prompt), 0) in events and isinstance(events[-2], Stats)


def test_settings_of_their_own(engine: Engine) -> None:
    """A setting and a length each; one that only the host can sample goes with the others."""
    each = [GREEDY, SEEDED, Sampling(temperature=0, logit_bias={3: 100.0})]
    replies = together(engine, [IDS] * 3, each, 6)
    assert [ids_of(events) for events in replies] == [ids_of(reply(engine, IDS, one, 6)) for one in each]
    assert [event for event in replies[2] if isinstance(event, Notice)]


def test_what_they_share_is_computed_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    forward = engine.executor.forward

    def counting(cache: Any, ids: Sequence[int], logits: Any) -> Any:
        computed.append(len(ids))
        return forward(cache, ids, logits)

    monkeypatch.setattr(engine.executor, "forward", counting)
    replies = together(engine, [[*IDS, 5, 7], [*IDS, 9], [*IDS, 5, 8], IDS], GREEDY, 4)
    # All but the last token of each: ten that all four share, one that three have after them, one that two have.
    assert sum(computed) == 12
    for events in replies:
        held = [event.done for event in events if isinstance(event, Prefill)]
        assert held[0] == 0 and held == sorted(held) and held[-1] == events[-1].timings.prompt_tokens  # type: ignore[union-attr]


def test_sequences_keep_their_states(engine: Engine) -> None:
    """Each then holds prompt and reply; the next turn begins from there, also that of a sequence that is new."""
    sequences = [engine.sequence() for _ in range(3)]
    first = together(engine, PROMPTS[:3], SEEDED, 6, sequences=sequences)
    for prompt, events, sequence in zip(PROMPTS, first, sequences, strict=False):
        assert sequence.token_ids == (*prompt, *ids_of(events)[:-1]) and sequence.next_ids == (ids_of(events)[-1],)
        assert sequence.kv_stats().tokens == len(sequence)
        logits = engine.logits([*sequence.token_ids, 9], [len(sequence)])[0]
        np.testing.assert_allclose(sequence.fork().append([9]), logits, atol=CLOSE)
    turns = [[*sequence.token_ids, 8, 15] for sequence in sequences]
    second = together(engine, [*turns, turns[1]], GREEDY, 4, sequences=[*sequences, None])
    for turn, events in zip([*turns, turns[1]], second, strict=True):
        assert next(event.reused for event in events if isinstance(event, Prompted)) == len(turn) - 2
        assert ids_of(events) == ids_of(reply(engine, turn, GREEDY, 4))
    for sequence in sequences:
        sequence.close()


def test_they_join_and_leave(engine: Engine) -> None:
    """One ends early, one is stopped, one joins what runs, and one joins when all others have left."""
    batch = engine.generate_many([IDS, PROMPTS[1]], SEEDED, 12)
    assert batch.add(PROMPTS[2], GREEDY, 3) == 2
    events: dict[int, list[Event]] = {}
    for number, event in batch:
        events.setdefault(number, []).append(event)
        if number == 0 and isinstance(event, Token) and len(ids_of(events[0])) == 5:
            assert batch.add([*IDS, *ids_of(events[0])], GREEDY, 4) == 3
            batch.stop(1)
        if number == 3 and isinstance(event, Finished):
            batch.add(PROMPTS[3], GREEDY, 2)
    assert reason_of(events[1]) == "cancelled"
    alone = ids_of(reply(engine, IDS, SEEDED, 12))
    assert ids_of(events[0]) == alone and len(alone) > 5
    stopped = ids_of(events[1])
    assert 4 <= len(stopped) < 12 and stopped == ids_of(reply(engine, PROMPTS[1], SEEDED, 12))[: len(stopped)]
    assert ids_of(events[2]) == ids_of(reply(engine, PROMPTS[2], GREEDY, 3))
    assert ids_of(events[3]) == ids_of(reply(engine, [*IDS, *alone[:5]], GREEDY, 4))
    assert ids_of(events[4]) == ids_of(reply(engine, PROMPTS[3], GREEDY, 2))


def test_more_than_a_step_takes_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.executor, "max_batch", 2)
    replies = together(engine, PROMPTS, GREEDY, 3)
    assert [ids_of(events) for events in replies] == [ids_of(reply(engine, prompt, GREEDY, 3)) for prompt in PROMPTS]


def test_stops_context_and_cancel(engine: Engine) -> None:
    alone = reply(engine, IDS, GREEDY, 8)
    stop = "".join(event.text for event in alone if isinstance(event, Token))[3:6]
    long = [(7 * i) % 500 for i in range(engine.info.context - 3)]
    each = [Sampling(temperature=0, stop=(stop,)), GREEDY, GREEDY]
    stopped, full, whole = together(engine, [IDS, long, IDS], each, 8)
    assert reason_of(stopped) == "stop" and text_of(stopped) == text_of(alone)[:3]
    assert reason_of(full) == "context" and ids_of(full) == ids_of(reply(engine, long, GREEDY, 8))
    assert ids_of(whole) == ids_of(alone)
    batch = engine.generate_many([IDS, PROMPTS[1]], GREEDY)
    events: dict[int, list[Event]] = {0: [], 1: []}
    for number, event in batch:
        events[number].append(event)
        if len(ids_of(events[1])) == 3:
            engine.cancel()
    assert [reason_of(each) for each in events.values()] == ["cancelled", "cancelled"]
    assert [len(ids_of(each)) for each in events.values()] == [3, 3]


def test_leaving_the_iteration_leaves_sound_sequences(engine: Engine) -> None:

    sequence = engine.sequence()
    for number, event in engine.generate_many([IDS, PROMPTS[1]], GREEDY, sequences=[sequence, None]):
        if number == 1 and isinstance(event, Token):
            break
    assert sequence.token_ids == tuple(IDS) and sequence.kv_stats().tokens == len(IDS)
    assert ids_of(reply(engine, sequence, GREEDY, 5)) == ids_of(reply(engine, IDS, GREEDY, 5))
    sequence.close()


def test_refusals(engine: Engine) -> None:
    sequence = engine.sequence()
    with pytest.raises(BatchRefused, match="twice"):
        engine.generate_many([IDS, IDS], sequences=[sequence, sequence])
    with pytest.raises(BatchRefused, match=r"the first has paged, number 2 has contiguous"):
        engine.generate_many([IDS, IDS], sequences=[sequence, engine.sequence(kv="contiguous")])
    with pytest.raises(ContextFull):
        engine.generate_many([IDS, list(range(engine.info.context + 1))])
    with pytest.raises(ValueError, match="not in the vocabulary"):
        engine.generate_many([IDS, [10**6]])
    assert len(sequence) == 0
    with pytest.raises(BatchRefused, match="a batch of 0 sequences"):
        engine.executor.forward_many([], [])
