"""Sequences: whatever was appended, truncated or forked, the next logits are those of a fresh computation."""

from __future__ import annotations

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.errors import ContextFull
from tests.inference.replies import CLOSE, IDS


def test_logits_of_some_positions(engine: Engine) -> None:
    every = engine.logits(IDS)
    assert every.shape == (len(IDS), engine.info.vocab_size) and every.dtype == np.float32
    np.testing.assert_allclose(engine.logits(IDS, [10, 0]), every[[0, 10]], atol=CLOSE)


def test_append_gives_the_logits_after_the_last_id(engine: Engine) -> None:
    every = engine.logits(IDS)
    sequence = engine.sequence()
    np.testing.assert_allclose(sequence.append(IDS[:4]), every[3], atol=CLOSE)
    np.testing.assert_allclose(sequence.append(IDS[4:5]), every[4], atol=CLOSE)
    np.testing.assert_allclose(sequence.append(IDS[5:]), every[-1], atol=CLOSE)
    assert sequence.token_ids == tuple(IDS) and len(sequence) == len(IDS)
    with pytest.raises(ValueError, match="at least one"):
        sequence.append([])
    sequence.close()
    assert sequence.token_ids == ()


def test_append_of_more_than_one_chunk(engine: Engine) -> None:
    ids = [(7 * i) % 500 for i in range(120)]
    sequence = engine.sequence()
    np.testing.assert_allclose(sequence.append(ids), engine.logits(ids)[-1], atol=CLOSE)
    assert sequence.token_ids == tuple(ids)
    sequence.close()


@pytest.mark.parametrize("length", [0, 1, 6, 11])
def test_truncate_then_append_is_as_fresh(engine: Engine, length: int) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    sequence.truncate(length)
    assert sequence.token_ids == tuple(IDS[:length])
    assert sequence.kv_stats().tokens == length
    other = [5, 77, 301]
    np.testing.assert_allclose(sequence.append(other), engine.logits([*IDS[:length], *other])[-1], atol=CLOSE)
    sequence.close()


@pytest.mark.parametrize("length", [-1, 12])
def test_truncate_outside_is_refused(engine: Engine, length: int) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    with pytest.raises(ValueError, match="holds 11"):
        sequence.truncate(length)
    assert sequence.token_ids == tuple(IDS)
    sequence.close()


@pytest.mark.parametrize(
    ("held", "new", "reused"),
    [
        ([], IDS, 0),
        (IDS, IDS, 11),
        (IDS, IDS[:4], 4),
        (IDS, [*IDS[:6], 1, 2, 3], 6),
        (IDS, [1, *IDS], 0),
        (IDS[:3], IDS, 3),
    ],
)
def test_set_ids_keeps_the_common_prefix(engine: Engine, held: list[int], new: list[int], reused: int) -> None:
    sequence = engine.sequence()
    if held:
        sequence.append(held)
    assert sequence.set_ids(new) == reused
    assert sequence.token_ids == tuple(new)
    np.testing.assert_allclose(sequence.append([42]), engine.logits([*new, 42])[-1], atol=CLOSE)
    sequence.close()


def test_a_fork_and_its_origin_go_separate_ways(engine: Engine) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    fork = sequence.fork()
    assert fork.token_ids == sequence.token_ids
    ours, theirs = sequence.append([100, 200]), fork.append([300])
    np.testing.assert_allclose(ours, engine.logits([*IDS, 100, 200])[-1], atol=CLOSE)
    np.testing.assert_allclose(theirs, engine.logits([*IDS, 300])[-1], atol=CLOSE)
    sequence.close()
    np.testing.assert_allclose(fork.append([301]), engine.logits([*IDS, 300, 301])[-1], atol=CLOSE)
    fork.close()


def test_an_empty_sequence_can_be_forked(engine: Engine) -> None:
    fork = engine.sequence().fork()
    np.testing.assert_allclose(fork.append(IDS), engine.logits(IDS)[-1], atol=CLOSE)
    fork.close()


def test_a_closed_sequence_frees_its_memory_and_can_be_used_again(engine: Engine) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    assert 0 < sequence.kv_stats().allocated_bytes <= engine.memory().kv_bytes
    sequence.close()
    assert sequence.kv_stats().allocated_bytes == 0
    np.testing.assert_allclose(sequence.append(IDS[:2]), engine.logits(IDS[:2])[-1], atol=CLOSE)
    sequence.close()


def test_more_than_the_context_is_refused_and_changes_nothing(engine: Engine) -> None:
    sequence = engine.sequence()
    sequence.append(IDS)
    for refused in (lambda: sequence.append([1] * 118), lambda: sequence.set_ids([1] * 129)):
        with pytest.raises(ContextFull, match="129 tokens do not fit the context of 128"):
            refused()
    assert sequence.token_ids == tuple(IDS)
    with pytest.raises(ContextFull):
        engine.logits([1] * 129)
    sequence.close()


@pytest.mark.parametrize("bad", [-1, 512])
def test_ids_beyond_the_vocabulary_are_refused(engine: Engine, bad: int) -> None:
    sequence = engine.sequence()
    with pytest.raises(ValueError, match=f"{bad} is not in the vocabulary"):
        sequence.append([1, bad])
    with pytest.raises(ValueError, match=f"{bad} is not in the vocabulary"):
        list(engine.generate([1, 2], Sampling(logit_bias={bad: 1.0}), max_tokens=1))
    assert sequence.token_ids == ()
