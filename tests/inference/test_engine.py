"""Replies of the Engine on a tiny llama: what is generated, when it ends, and what the cache then holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.errors import ContextFull
from inference.events import Finished, Prefill, Stats, Token
from tests.inference.replies import CLOSE, GREEDY, IDS, ids_of, reason_of, reply, text_of

Tiny = Callable[[str], Path]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why does it look so early?"}]


def test_greedy_is_the_reference(engine: Engine, tiny: Tiny) -> None:
    golden = np.load(tiny("llama") / "golden.npz")
    events = reply(engine, golden["greedy_a_prompt"].tolist(), max_tokens=24)
    assert ids_of(events) == golden["greedy_a"].tolist()
    assert reason_of(events) == "length"


def test_a_sequence_holds_all_but_the_last_sampled_id(engine: Engine) -> None:
    sequence = engine.sequence()
    sampled = ids_of(reply(engine, sequence=sequence))
    assert len(sampled) == 12
    assert sequence.token_ids == (*IDS, *sampled[:-1])
    # What the cache holds is what it says.
    np.testing.assert_allclose(sequence.append([9]), engine.logits([*sequence.token_ids[:-1], 9])[-1], atol=CLOSE)
    sequence.close()


def test_generating_from_where_a_sequence_stands(engine: Engine) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    events = reply(engine, sequence)
    assert ids_of(events) == ids_of(reply(engine))
    assert events[0] == Prefill(0, 1, 10)
    # It stands one token before the end of the reply; going on repeats that one and continues.
    longer = ids_of(reply(engine, max_tokens=20))
    assert ids_of(reply(engine, sequence, max_tokens=9)) == longer[11:20]
    sequence.close()


def test_an_empty_prompt_is_refused(engine: Engine) -> None:
    for prompt in ([], engine.sequence()):
        with pytest.raises(ValueError, match="generate needs"):
            reply(engine, prompt)


def test_messages_are_rendered_by_the_template(engine: Engine) -> None:
    events = reply(engine, MESSAGES)
    ids = engine.encode_chat(MESSAGES)
    assert ids_of(events) == ids_of(reply(engine, ids))
    timings = events[-1].timings  # type: ignore[union-attr]
    assert (timings.prompt_tokens, timings.output_tokens, timings.reused_tokens) == (len(ids), 12, 0)


def test_the_next_turn_reuses_what_the_cache_holds(engine: Engine) -> None:
    sequence = engine.sequence()
    first = reply(engine, MESSAGES, sequence=sequence)
    held = len(sequence)
    turn = [*engine.encode_chat(MESSAGES), *ids_of(first), 200, 201]
    events = reply(engine, turn, sequence=sequence)
    assert events[0] == Prefill(0, len(turn) - held, held)
    finished = events[-1]
    assert isinstance(finished, Finished) and finished.timings.reused_tokens == held
    assert ids_of(events) == ids_of(reply(engine, turn))
    # A turn that parts early reuses only what is common.
    parted = [*turn[:5], 3, 4, 5]
    assert reply(engine, parted, sequence=sequence)[0] == Prefill(0, 3, 5)
    # The very same prompt is computed again from its last token on.
    assert reply(engine, parted, sequence=sequence)[0] == Prefill(0, 1, 7)
    sequence.close()


def test_prefill_is_reported_up_to_the_end(engine: Engine) -> None:
    events = [event for event in reply(engine, [1] * 100) if isinstance(event, Prefill)]
    assert events[0] == Prefill(0, 100, 0) and events[-1] == Prefill(100, 100, 0)
    assert [event.done for event in events] == sorted(event.done for event in events)


def test_every_token_has_its_probability_and_alternatives(engine: Engine) -> None:
    tokens = [event for event in reply(engine) if isinstance(event, Token)]
    logits = engine.logits([*IDS, *(token.id for token in tokens)])[len(IDS) - 1 :].astype(np.float64)
    for row, token in zip(logits[:-1], tokens, strict=True):
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        best = np.argsort(-row, kind="stable")[: len(token.alternatives)]
        assert token.logprob == pytest.approx(logprobs[token.id], abs=1e-3)
        assert [alternative.id for alternative in token.alternatives] == best.tolist()
        assert [a.logprob for a in token.alternatives] == pytest.approx(logprobs[best].tolist(), abs=1e-3)
        assert token.alternatives[0].text == engine.tokenizer.decode([token.id])


def test_figures_come_while_generating_and_at_the_end(engine: Engine) -> None:
    sequence = engine.sequence()
    events = reply(engine, sequence=sequence)
    stats = [event for event in events if isinstance(event, Stats)]
    assert len(stats) >= 2 and isinstance(events[-2], Stats)
    last = stats[-1]
    assert last.kv == sequence.kv_stats()
    assert (last.kv.tokens, last.kv.context) == (22, 128)
    assert last.memory.kv_bytes >= last.kv.allocated_bytes > 0
    assert last.memory.weights_bytes > 0 and last.memory.peak_bytes >= last.memory.weights_bytes
    assert last.timings.decode_tps > 0 and last.timings.ttft_s > 0
    sequence.close()


def test_max_tokens(engine: Engine) -> None:
    sequence = engine.sequence()
    none = reply(engine, max_tokens=0, sequence=sequence)
    assert (ids_of(none), text_of(none), reason_of(none)) == ([], "", "length")
    one = reply(engine, max_tokens=1, sequence=sequence)
    assert (ids_of(one), reason_of(one)) == (ids_of(reply(engine))[:1], "length")
    assert sequence.token_ids == tuple(IDS)
    sequence.close()


def test_a_stop_token_ends_the_reply_and_is_not_shown(engine: Engine) -> None:
    stop = min(engine.tokenizer.stop_ids)
    sequence = engine.sequence()
    events = reply(engine, sampling=Sampling(temperature=0, logit_bias={stop: 1e4}), sequence=sequence)
    assert (ids_of(events), text_of(events), reason_of(events)) == ([], "", "stop")
    assert sequence.token_ids == tuple(IDS)
    sequence.close()


def test_a_stop_token_in_the_middle(engine: Engine, tiny: Tiny) -> None:
    """The reference's own case: its continuation ends in a stop token."""
    case = json.loads((tiny("llama") / "golden.json").read_text())["greedy"]["stop"]
    *shown, stop = case["tokens"]
    assert stop in engine.tokenizer.stop_ids
    sequence = engine.sequence()
    events = reply(engine, case["prompt"], max_tokens=100, sequence=sequence)
    assert (ids_of(events), reason_of(events)) == (shown, "stop")
    assert sequence.token_ids == (*case["prompt"], *shown)
    sequence.close()


def test_a_stop_string_over_several_tokens(engine: Engine) -> None:
    whole = reply(engine)
    text = text_of(whole)
    pieces = [event.text for event in whole if isinstance(event, Token)]
    start = len("".join(pieces[:4])) - 1
    stop = text[start : start + len("".join(pieces[4:6])) + 1]
    assert text.count(stop) == 1 and len(stop) > len(pieces[4])
    sequence = engine.sequence()
    events = reply(engine, sampling=Sampling(temperature=0, stop=("never", stop)), sequence=sequence)
    assert (text_of(events), reason_of(events)) == (text[:start], "stop")
    assert sequence.token_ids == (*IDS, *ids_of(events)[:-1])
    sequence.close()


def test_half_a_stop_string_is_shown_at_the_end(engine: Engine) -> None:
    text = text_of(reply(engine))
    events = reply(engine, sampling=Sampling(temperature=0, stop=(text[-3:] + "and more",)))
    assert (text_of(events), reason_of(events)) == (text, "length")
    held_back = [event for event in events if isinstance(event, Token)][-1]
    assert held_back.id == -1 and held_back.text.endswith(text[-3:])


def test_half_a_character_is_shown_at_the_end(engine: Engine) -> None:
    (half,) = engine.tokenizer.encode("é")[:1]
    assert engine.tokenizer.token_bytes(half) == b"\xc3"
    events = reply(engine, sampling=Sampling(temperature=0, logit_bias={half: 1e4}), max_tokens=3)
    assert ids_of(events) == [half] * 3
    texts = [event.text for event in events if isinstance(event, Token)]
    assert texts == ["", "\ufffd", "\ufffd", "\ufffd"]
    assert reason_of(events) == "length"


def test_text_is_what_the_ids_decode_to(engine: Engine) -> None:
    events = reply(engine, max_tokens=24)
    assert text_of(events) == engine.tokenizer.decode(ids_of(events))


@pytest.mark.parametrize("length", [120, 127, 128])
def test_the_end_of_the_context(engine: Engine, length: int) -> None:
    ids = [(11 * i) % 500 for i in range(length)]
    sequence = engine.sequence()
    events = reply(engine, ids, max_tokens=None, sequence=sequence)
    sampled = ids_of(events)
    assert reason_of(events) == "context"
    # The last token needs no room: nothing is computed after it.
    assert len(sampled) == 128 - length + 1
    assert sequence.token_ids == (*ids, *sampled[:-1]) and len(sequence) == 128
    np.testing.assert_array_equal(engine.logits(ids)[-1].argmax(), sampled[0])
    sequence.close()


def test_a_prompt_that_is_too_long(engine: Engine) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    with pytest.raises(ContextFull, match="129 tokens do not fit the context of 128"):
        reply(engine, [1] * 129, sequence=sequence)
    assert sequence.token_ids == tuple(IDS)
    sequence.close()


def test_replies_without_a_sequence_leave_no_memory_behind(engine: Engine) -> None:
    before = engine.memory().kv_bytes
    reply(engine)
    half_read = engine.generate(IDS, GREEDY)
    for event in half_read:
        if isinstance(event, Token):
            break
    half_read.close()  # type: ignore[attr-defined]
    assert engine.memory().kv_bytes == before
