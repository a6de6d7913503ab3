"""Twin lanes: two configurations that answer one prompt, what they write, and how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.errors import DoesNotFit, LayoutUnavailable
from inference.events import Event, Stats, Token
from inference.sequence import Sequence
from inference.twin_events import Divergence, KlDivergence, LaneEvent, NoKlDivergence, TwinEvent, TwinLane
from tests.inference.replies import GREEDY, IDS, ids_of, reason_of, reply, text_of

Tiny = Callable[[str], Path]
# Longer than the 256 tokens that the tiered layouts keep as they are.
LONG = [int(token) for token in np.random.default_rng(7).integers(3, 500, 400)]
WILD = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=5)


@pytest.fixture(scope="module")
def llama(tiny: Tiny) -> Iterator[Engine]:
    with_weights = Engine.open(tiny("llama"), device="cpu")
    yield with_weights
    with_weights.close()


def twin(
    one: Engine,
    sampling: Sampling,
    other: Sampling,
    kv: str = "contiguous",
    prompt: Any = LONG,
    max_tokens: int = 24,
    engine: Engine | None = None,
    loras: tuple[Any, Any] = (None, None),
) -> list[TwinEvent]:
    """All events of two lanes, the first one contiguous."""
    second = engine or one
    lanes = (
        TwinLane(one, one.sequence("contiguous"), sampling, loras[0]),
        TwinLane(second, second.sequence(kv), other, loras[1]),
    )
    events = list(one.twin(prompt, lanes, max_tokens))
    for lane in lanes:
        lane.sequence.close()
    return events


def lane(events: list[TwinEvent], index: int) -> list[Event]:
    """The events of one lane's reply."""
    return [each.event for each in events if isinstance(each, LaneEvent) and each.lane == index]


def kl_of(events: list[TwinEvent]) -> list[KlDivergence]:
    return [each for each in events if isinstance(each, KlDivergence)]


def divergences(events: list[TwinEvent]) -> list[int]:
    return [each.position for each in events if isinstance(each, Divergence)]


def kl(p_logits: np.ndarray, q_logits: np.ndarray) -> float:
    """The definition, straight."""
    p, q = (np.exp(logits.astype(np.float64)) for logits in (p_logits, q_logits))
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def logits_along(sequence: Sequence, ids: list[int]) -> list[np.ndarray]:
    """Logits after the prompt, and after each of `ids`."""
    rows = [sequence.append(LONG)] + [sequence.append([token]) for token in ids]
    sequence.close()
    return rows


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.2), WILD])
def test_a_lane_against_itself_never_diverges(llama: Engine, sampling: Sampling) -> None:
    events = twin(llama, sampling, sampling)
    assert not divergences(events)
    assert {each.nats for each in kl_of(events)} == {0.0}
    assert ids_of(lane(events, 0)) == ids_of(lane(events, 1))
    assert reason_of(lane(events, 0)) == reason_of(lane(events, 1))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3), Sampling(seed=3, repetition=1.4, presence=0.5)])
def test_each_lane_writes_what_it_would_alone(llama: Engine, sampling: Sampling) -> None:
    events = twin(llama, sampling, WILD, kv="bdpa")
    for index, (alone, kv) in enumerate([(sampling, "contiguous"), (WILD, "bdpa")]):
        sequence = llama.sequence(kv)
        expected = reply(llama, LONG, alone, 24, sequence=sequence)
        assert ids_of(lane(events, index)) == ids_of(expected)
        assert text_of(lane(events, index)) == text_of(expected)
        sequence.close()


@pytest.mark.parametrize("kv", ["tiered-int4", "bdpa"])
def test_divergence_is_about_the_text_of_the_first_lane(llama: Engine, kv: str) -> None:
    events = twin(llama, Sampling(seed=1), WILD, kv=kv)
    ids, others = (ids_of(lane(events, index)) for index in (0, 1))
    first = next(index for index, (one, other) in enumerate(zip_longest(ids, others)) if one != other)
    assert divergences(events) == [first]
    ours, theirs = (logits_along(llama.sequence(each), ids[:-1]) for each in ("contiguous", kv))
    expected = [kl(one, other) for one, other in zip(ours, theirs, strict=True)]
    found = kl_of(events)
    assert [each.position for each in found] == list(range(24))
    assert max(expected) > 1e-6
    np.testing.assert_allclose([each.nats for each in found], expected, rtol=1e-3, atol=1e-10)
    np.testing.assert_allclose([each.mean for each in found], np.cumsum(expected) / np.arange(1, 25), rtol=1e-3)


def test_sampling_alone_is_no_divergence_of_models(llama: Engine) -> None:
    events = twin(llama, GREEDY, WILD)
    assert divergences(events)
    assert [each.nats for each in kl_of(events)] == [0.0] * 24


def test_sequences_end_as_after_a_reply_of_their_own(llama: Engine) -> None:
    sequences = llama.sequence("contiguous"), llama.sequence("tiered-int8")
    lanes = TwinLane(llama, sequences[0], GREEDY), TwinLane(llama, sequences[1], WILD)
    events = list(llama.twin(LONG, lanes, 12))
    for index, sequence in enumerate(sequences):
        ids = ids_of(lane(events, index))
        assert sequence.token_ids == (*LONG, *ids[:-1])
        assert sequence.next_ids == (ids[-1],)
    # What is held is not read again.
    longer = [*LONG, *ids_of(lane(events, 0)), 9]
    again = lane(list(llama.twin(longer, lanes, 4)), 0)
    assert again[-1].timings.reused_tokens == len(LONG) + 11  # type: ignore[union-attr]
    for sequence in sequences:
        sequence.close()


def test_the_fork_is_given_back(llama: Engine) -> None:
    before = llama.memory().kv_bytes
    assert divergences(twin(llama, GREEDY, WILD))
    assert llama.memory().kv_bytes == before


def test_a_stop_string_ends_its_lane_only(llama: Engine) -> None:
    wild, greedy = (text_of(reply(llama, LONG, each, 24)) for each in (WILD, GREEDY))
    stop = next(wild[at : at + 3] for at in range(10, 40) if wild[at : at + 3] not in greedy)
    stopping = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=5, stop=(stop,))
    events = twin(llama, GREEDY, stopping)
    assert (reason_of(lane(events, 0)), reason_of(lane(events, 1))) == ("length", "stop")
    assert text_of(lane(events, 1)) == wild[: wild.index(stop)]
    assert text_of(lane(events, 0)) == greedy
    assert len(kl_of(events)) == 24


def test_a_stop_token_is_a_divergence_and_ends_the_measure(llama: Engine) -> None:
    (end,) = list(llama.tokenizer.stop_ids)[:1]
    ending = Sampling(temperature=0, logit_bias={end: 1e6})
    events = twin(llama, ending, GREEDY)
    assert reason_of(lane(events, 0)) == "stop" and not ids_of(lane(events, 0))
    assert divergences(events) == [0]
    assert len(kl_of(events)) == 1
    assert len(ids_of(lane(events, 1))) == 24


def test_no_tokens_are_wanted(llama: Engine) -> None:
    events = twin(llama, GREEDY, GREEDY, max_tokens=0)
    assert not kl_of(events)
    assert [reason_of(lane(events, index)) for index in (0, 1)] == ["length", "length"]


def test_a_full_context_ends_both(tiny: Tiny) -> None:
    engine = Engine.open(tiny("llama"), device="cpu", context=20)
    events = twin(engine, GREEDY, WILD, prompt=IDS, max_tokens=100)
    assert [reason_of(lane(events, index)) for index in (0, 1)] == ["context", "context"]
    assert len(ids_of(lane(events, 0))) == len(kl_of(events)) == 20 - len(IDS) + 1
    engine.close()


def test_cancel_stops_both_and_shows_no_token_after_it(llama: Engine) -> None:
    lanes = tuple(TwinLane(llama, llama.sequence(), each) for each in (GREEDY, WILD))
    events: list[TwinEvent] = []
    for event in llama.twin(LONG, lanes, 50):  # type: ignore[arg-type]
        events.append(event)
        if isinstance(event, LaneEvent) and isinstance(event.event, Token) and len(ids_of(lane(events, 0))) == 5:
            llama.cancel()
    assert [reason_of(lane(events, index)) for index in (0, 1)] == ["cancelled", "cancelled"]
    assert (len(ids_of(lane(events, 0))), len(ids_of(lane(events, 1)))) == (5, 4)
    # The sequences can go on.
    assert lanes[0].sequence.token_ids[: len(LONG)] == tuple(LONG)
    for each in lanes:
        each.sequence.append([7])
        each.sequence.close()


def test_two_engines_of_one_vocabulary(llama: Engine, tiny: Tiny) -> None:
    quantised = Engine.open(tiny("llama"), device="cpu", weights="q4")
    events = twin(llama, GREEDY, GREEDY, engine=quantised)
    assert kl_of(events)[0].nats > 1e-5
    memory = [each.memory.weights_bytes for each in lane(events, 1) if isinstance(each, Stats)]
    assert memory[-1] == quantised.memory().weights_bytes
    quantised.close()


def test_other_vocabularies_have_no_divergence_and_say_why(llama: Engine, tiny: Tiny) -> None:
    other = Engine.open(tiny("qwen3"), device="cpu")
    events = twin(llama, GREEDY, GREEDY, engine=other, prompt=IDS)
    (why,) = [each.reason for each in events if isinstance(each, NoKlDivergence)]
    assert why.startswith("no KL divergence: token ")
    assert not kl_of(events) and not divergences(events)
    assert ids_of(lane(events, 1)) == ids_of(reply(other, IDS, GREEDY, 24))
    other.close()


def test_strengths_of_an_adapter_on_one_engine(tiny: Tiny) -> None:
    adapter = str(tiny("llama") / "lora" / "adapter1")
    engine = Engine.open(tiny("llama"), device="cpu", loras=[(adapter, 1.0)])
    before = engine.adapters
    events = twin(engine, GREEDY, GREEDY, loras=(None, ((adapter, -2.0),)))
    assert engine.adapters is before
    assert kl_of(events)[0].nats > 1e-6
    assert ids_of(lane(events, 0)) == ids_of(reply(engine, LONG, max_tokens=24))
    engine.set_loras([(adapter, -2.0)])
    assert ids_of(lane(events, 1)) == ids_of(reply(engine, LONG, max_tokens=24))
    engine.close()


def test_what_does_not_fit_beside_another_engine_is_refused(tiny: Tiny) -> None:
    with pytest.raises(DoesNotFit, match=r"does not fit the CPU.* left beside another engine"):
        Engine.open(tiny("llama"), device="cpu", taken=1 << 60)


def test_a_layout_that_the_model_cannot_have_is_refused(llama: Engine) -> None:
    with pytest.raises(LayoutUnavailable, match="sliding window"):
        llama.sequence("ring")


def test_smollm2_parts_from_its_quantised_cache(smollm2_path: Path) -> None:
    engine = Engine.open(smollm2_path, device="cpu")
    days = [f"On day {day} the crew of the boat saw {day * 3} birds and wrote it down." for day in range(1, 22)]
    messages = [{"role": "user", "content": f"{' '.join(days)} Write a letter home about these days."}]
    assert len(engine.encode_chat(messages)) > 256
    events = twin(engine, GREEDY, GREEDY, kv="tiered-int4", prompt=messages, max_tokens=8)
    ids, others = (ids_of(lane(events, index)) for index in (0, 1))
    (position,) = divergences(events)
    assert ids[:position] == others[:position] and ids[position] != others[position]
    assert kl_of(events)[-1].mean > 1e-4
    engine.close()


@pytest.mark.gpu
def test_a_gpu_beside_numpy(llama: Engine, tiny: Tiny) -> None:
    """Two layouts on one GPU engine, then the reference as the second lane."""
    gpu = Engine.open(tiny("llama"), device="webgpu", dtype="f32")
    layouts = twin(gpu, GREEDY, GREEDY, kv="tiered-int4", max_tokens=3)
    devices = twin(gpu, GREEDY, GREEDY, engine=llama, max_tokens=3)
    assert ids_of(lane(layouts, 0)) == ids_of(lane(devices, 0)) == ids_of(lane(devices, 1))
    assert 0 < max(each.nats for each in kl_of(devices)) < 1e-6 < max(each.nats for each in kl_of(layouts))
    gpu.close()
