"""Sampling through the Engine: seeds, penalties, bias, and what is drawn on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.events import Notice
from tests.inference.replies import GREEDY, IDS, ids_of, reply

WARM = Sampling(temperature=1.5, top_k=40, top_p=1.0, min_p=0.0, seed=7)


def test_the_same_seed_gives_the_same_text(engine: Engine) -> None:
    first, second = (ids_of(reply(engine, sampling=WARM, max_tokens=30)) for _ in range(2))
    assert first == second and len(first) > 5


def test_other_seeds_give_other_texts(engine: Engine) -> None:
    texts = {tuple(ids_of(reply(engine, sampling=replace(WARM, seed=seed)))) for seed in (1, 2, 2**40 + 1, None, None)}
    assert len(texts) == 5


def test_the_seed_of_a_position_does_not_depend_on_the_reuse(engine: Engine) -> None:
    """The same context gives the same draw, whether it was just computed or was in the cache."""
    sampled = ids_of(reply(engine, sampling=WARM, max_tokens=10))
    sequence = engine.sequence()
    reply(engine, sequence=sequence, max_tokens=3)
    assert ids_of(reply(engine, [*IDS, *sampled[:5]], sampling=WARM, max_tokens=5, sequence=sequence)) == sampled[5:]
    sequence.close()


def test_a_very_low_temperature_is_greedy(engine: Engine) -> None:
    cold = Sampling(temperature=1e-5, top_k=40, seed=3)
    assert ids_of(reply(engine, sampling=cold)) == ids_of(reply(engine))


def test_only_candidates_are_drawn(engine: Engine) -> None:
    best = np.argsort(-engine.logits(IDS)[-1])[:3]
    narrow = replace(WARM, temperature=50.0, top_k=3)
    drawn = {ids_of(reply(engine, sampling=replace(narrow, seed=seed), max_tokens=1))[0] for seed in range(25)}
    assert drawn == set(best.tolist())


def notices(engine: Engine, sampling: Sampling) -> list[str]:
    return [event.text for event in reply(engine, sampling=sampling) if isinstance(event, Notice)]


def test_frequency_penalty_keeps_a_text_from_repeating(engine: Engine) -> None:
    plain = ids_of(reply(engine, max_tokens=30))
    assert len(set(plain)) < len(plain)
    penalised = ids_of(reply(engine, sampling=replace(GREEDY, frequency=1e4), max_tokens=30))
    assert len(set(penalised)) == len(penalised) > 10
    # The prompt counts as well.
    assert not set(penalised) & set(IDS)


@pytest.mark.parametrize("penalty", [{"presence": 5.0}, {"repetition": 3.0}, {"frequency": 0.7}])
def test_penalties_follow_their_formula(engine: Engine, penalty: dict[str, float]) -> None:
    sampling = replace(GREEDY, **penalty)
    context, expected = list(IDS), []
    for _ in range(16):
        logits = engine.logits(context)[-1].astype(np.float64)
        for token in set(context):
            if logits[token] > 0:
                logits[token] /= sampling.repetition
            else:
                logits[token] *= sampling.repetition
            logits[token] -= sampling.presence + sampling.frequency * context.count(token)
        order = np.argsort(-logits)
        if logits[order[0]] - logits[order[1]] < 1e-3 or int(order[0]) in engine.tokenizer.stop_ids:
            break
        expected.append(int(order[0]))
        context.append(expected[-1])
    assert len(expected) >= 12
    assert ids_of(reply(engine, sampling=sampling, max_tokens=len(expected))) == expected
    assert expected != ids_of(reply(engine, max_tokens=len(expected)))


def test_a_bias_forces_a_token_and_says_that_the_host_draws(engine: Engine) -> None:
    forced = replace(GREEDY, logit_bias={77: 1e4})
    assert ids_of(reply(engine, sampling=forced)) == [77] * 12
    assert notices(engine, forced) == ["one token at a time: logit bias is applied on the host"]
    banned = ids_of(reply(engine))[0]
    assert banned not in ids_of(reply(engine, sampling=replace(GREEDY, logit_bias={banned: -1e4})))


@pytest.mark.parametrize("top_k", [0, 65])
def test_more_candidates_than_the_gpu_sorts_are_drawn_on_the_host(engine: Engine, top_k: int) -> None:
    (notice,) = notices(engine, replace(WARM, top_k=top_k))
    assert notice.startswith("one token at a time: top_k") and "64" in notice


@pytest.mark.parametrize("sampling", [GREEDY, WARM, replace(WARM, repetition=1.1), Sampling()])
def test_the_usual_settings_need_no_notice(engine: Engine, sampling: Sampling) -> None:
    assert notices(engine, sampling) == []


@pytest.mark.parametrize(
    "sampling", [WARM, replace(WARM, top_p=0.6), replace(WARM, min_p=0.2), replace(WARM, frequency=0.5)]
)
def test_host_and_device_draw_alike(engine: Engine, sampling: Sampling) -> None:
    """A bias of nothing moves the drawing to the host and changes nothing else."""
    on_host = replace(sampling, logit_bias={0: 0.0})
    assert ids_of(reply(engine, sampling=on_host)) == ids_of(reply(engine, sampling=sampling))
