"""Prefix reuse on a windowed model: what a ring no longer holds is computed anew, with a notice, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from inference import Engine
from inference.events import Notice, Prefill
from tests.inference.replies import CLOSE, ids_of, reply

Tiny = Callable[[str], Path]
PROMPT = [(13 * i + i // 7) % 500 for i in range(460)]
OTHER = [401, 17, 300, 8]


@pytest.fixture(scope="module", params=["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Engine]:
    """The tiny Gemma: a window of 32, so that a ring holds 287 tokens on the CPU, fewer on a software adapter."""
    engine = Engine.open(tiny("gemma3_text") / "gguf" / "model-f16.gguf", device=request.param, dtype="f32")
    assert engine.info.kv_layout.startswith("ring")
    with threadpool_limits(1):  # BLAS's threads wait on each other longer than they share such small products
        yield engine
    engine.close()


@pytest.mark.parametrize(("kept", "reused"), [(455, 455), (20, 0), (150, 0)])
def test_an_edited_prompt(engine: Engine, kept: int, reused: int) -> None:
    """Back a little the prefix is kept; back further than the ring goes, all is computed anew and said to be."""
    sequence = engine.sequence()
    reply(engine, PROMPT, max_tokens=3, sequence=sequence)
    edited = [*PROMPT[:kept], *OTHER]
    events = reply(engine, edited, max_tokens=6, sequence=sequence)
    notices = [event.text for event in events if isinstance(event, Notice)]
    expected = [] if reused else [f"{kept} tokens are computed anew: the ring no longer holds what they saw"]
    assert notices == expected
    first = next(event for event in events if isinstance(event, Prefill))
    assert (first.reused, first.total) == (reused, len(edited) - reused)
    assert ids_of(events) == ids_of(reply(engine, edited, max_tokens=6))
    assert sequence.token_ids[: len(edited)] == tuple(edited)
    sequence.close()


def test_the_next_turn_reuses_all_of_the_last(engine: Engine) -> None:
    sequence = engine.sequence()
    events = reply(engine, PROMPT, max_tokens=8, sequence=sequence)
    turn = [*PROMPT, *ids_of(events), *OTHER]
    events = reply(engine, turn, max_tokens=4, sequence=sequence)
    assert not [event for event in events if isinstance(event, Notice)]
    first = next(event for event in events if isinstance(event, Prefill))
    assert first.reused == len(PROMPT) + 7  # the last token of a reply is not in the cache yet
    assert ids_of(events) == ids_of(reply(engine, turn, max_tokens=4))
    sequence.close()


@pytest.mark.parametrize("kept", [0, 1, 20, 150, 300, 445, 459, 460])
def test_truncate_anywhere_is_as_fresh(engine: Engine, kept: int) -> None:
    sequence = engine.sequence()
    sequence.set_ids(PROMPT)
    sequence.truncate(kept)
    assert sequence.token_ids == tuple(PROMPT[:kept]) and sequence.kv_stats().tokens == kept
    ids = [*PROMPT[:kept], *OTHER]
    np.testing.assert_allclose(sequence.append(OTHER), engine.logits(ids, [len(ids) - 1])[0], atol=5 * CLOSE)
    sequence.close()


def test_a_prompt_cancelled_half_way_leaves_a_sound_sequence(engine: Engine) -> None:
    """After it the same prompt goes on from where the cache stands."""
    sequence = engine.sequence()
    for event in engine.generate(PROMPT, sequence=sequence, max_tokens=4):
        if isinstance(event, Prefill) and event.done:
            engine.cancel()
    held = len(sequence)
    assert 0 < held < len(PROMPT)
    events = reply(engine, PROMPT, max_tokens=4, sequence=sequence)
    assert next(event for event in events if isinstance(event, Prefill)).reused == held
    assert ids_of(events) == ids_of(reply(engine, PROMPT, max_tokens=4))
    sequence.close()
