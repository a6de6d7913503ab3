"""The reference sampler: each stage against its plain definition, their order, and the draws' frequencies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.sampler import choose_candidate, penalize, sample, uniform
from inference.sampling import LOGIT_LIMIT, MAX_CANDIDATES, NUM_ALTERNATIVES, Sampling

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = Sampling(temperature=0.0)

finite_logits = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32)
)
settings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def drawn(logits: np.ndarray, sampling: Sampling, positions: int, counts: np.ndarray | None = None) -> np.ndarray:
    """How often each id is chosen over so many positions."""
    ids = [sample(logits, sampling, 11, position, counts).id for position in range(positions)]
    return np.bincount(ids, minlength=len(logits))


def kept_by_definition(values: np.ndarray, sampling: Sampling) -> int:
    """How many of the falling `values` may be drawn, one candidate after another."""
    if sampling.top_k:
        values = values[: sampling.top_k]
    probabilities = np.exp((values - values[0]) / sampling.temperature)
    probabilities /= probabilities.sum()
    kept, mass = 0, 0.0
    for probability in probabilities:
        if probability < sampling.min_p * probabilities[0]:
            break
        kept, mass = kept + 1, mass + probability
        # A mass that should be top_p exactly may miss it by rounding, in either form.
        if mass >= sampling.top_p - 1e-9:
            break
    return kept


@given(finite_logits, settings, st.floats(0, 1, exclude_max=True))
def test_choice_lies_in_what_the_stages_keep(logits: np.ndarray, sampling: Sampling, random: float) -> None:
    values = np.sort(logits)[::-1].astype(np.float64)
    last = choose_candidate(values, sampling, 1 - 2**-24)
    assert 0 <= choose_candidate(values, sampling, random) <= last
    assert choose_candidate(values, sampling, 0.0) == 0
    # The last candidate with a share above the draw's step is reached by the greatest draw.
    kept = kept_by_definition(values, sampling)
    shares = np.exp((values[:kept] - values[0]) / sampling.temperature)
    reachable = int(np.count_nonzero(np.cumsum(shares[::-1])[::-1] > 2**-22 * shares.sum()))
    assert reachable - 1 <= last
    close_to_cut = kept_by_definition(values, replace(sampling, top_p=min(1.0, sampling.top_p + 1e-6)))
    assert last < max(kept, close_to_cut)


@given(finite_logits)
def test_alternatives_are_the_log_softmax_in_order(logits: np.ndarray) -> None:
    found = sample(logits, OPEN, 1, 2, None)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:NUM_ALTERNATIVES]
    wide = logits.astype(np.float64)
    logprobs = wide - np.log(np.sum(np.exp(wide - wide.max()))) - wide.max()
    assert found.top_ids == tuple(order)
    np.testing.assert_allclose(found.top_logprobs, logprobs[order], atol=1e-5)
    np.testing.assert_allclose(found.logprob, logprobs[found.id], atol=1e-5)


@given(finite_logits, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_greedy_takes_the_lowest_of_the_best_ids(logits: np.ndarray, seed: int, position: int) -> None:
    assert sample(logits, GREEDY, seed, position, None).id == int(np.argmax(logits))
    assert sample(logits, replace(OPEN, top_k=1), seed, position, None).id == int(np.argmax(logits))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_uniform_is_pcg3d_in_32_bit_words(seed: int, position: int) -> None:
    x, y, z = np.array([[seed & 0xFFFFFFFF], [seed >> 32], [position]], np.uint32) * np.uint32(1664525) + np.uint32(
        1013904223
    )
    for _ in range(2):
        x = x + y * z
        y = y + z * x
        z = z + x * y
        final = x
        x, y, z = x ^ (x >> np.uint32(16)), y ^ (y >> np.uint32(16)), z ^ (z >> np.uint32(16))
    assert uniform(seed, position) == int(final[0] >> np.uint32(8)) / 2**24


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_uniform_is_uniform_over_positions(seed: int) -> None:
    count, bins = 20_000, 50
    draws = np.array([uniform(seed, position) for position in range(count)])
    assert draws.min() >= 0 and draws.max() < 1
    for values in (draws, (draws[1:] - draws[:-1]) % 1):  # each alone, and against the one before
        found = np.bincount((values * bins).astype(int), minlength=bins)
        expected = len(values) / bins
        chi_square = np.sum((found - expected) ** 2 / expected)
        assert chi_square < bins - 1 + 6 * np.sqrt(2 * (bins - 1))


@pytest.mark.parametrize(
    "sampling",
    [OPEN, replace(OPEN, temperature=2.5), replace(OPEN, top_k=5), replace(OPEN, top_p=0.7), replace(OPEN, min_p=0.2)],
)
def test_frequencies_follow_the_kept_probabilities(sampling: Sampling) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal(12).astype(np.float32)
    order = np.argsort(-logits)
    values = logits[order].astype(np.float64)
    kept = kept_by_definition(values, sampling)
    weights = np.exp(values[:kept] / sampling.temperature)
    positions = 6000
    expected = positions * weights / weights.sum()
    found = drawn(logits, sampling, positions)[order]
    assert not found[kept:].any()
    chi_square = np.sum((found[:kept] - expected) ** 2 / expected)
    assert chi_square < kept - 1 + 6 * np.sqrt(2 * max(1, kept - 1))


def test_seed_and_position_alone_decide() -> None:
    logits = np.random.default_rng(6).standard_normal(200).astype(np.float32)
    ids = [sample(logits, OPEN, 3, position, None).id for position in range(50)]
    assert ids == [sample(logits, OPEN, 3, position, None).id for position in range(50)]
    assert ids != [sample(logits, OPEN, 4, position, None).id for position in range(50)]
    assert len(set(ids)) > 10


LADDER = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def test_top_k_comes_before_top_p() -> None:
    # Of the two kept by top-k the first has 0.625 of the mass; of all four it has 0.5.
    found = drawn(LADDER, replace(OPEN, top_k=2, top_p=0.6), 300)
    assert (found > 0).tolist() == [True, False, False, False]
    assert (drawn(LADDER, replace(OPEN, top_p=0.6), 300) > 0).tolist() == [True, True, False, False]


def test_temperature_comes_before_top_p_and_min_p() -> None:
    # Probabilities go as their square roots at temperature 2: the first falls from 0.5 to 0.38 of the mass.
    assert (drawn(LADDER, replace(OPEN, top_p=0.45), 300) > 0).tolist() == [True, False, False, False]
    assert (drawn(LADDER, replace(OPEN, top_p=0.45, temperature=2.0), 300) > 0).tolist() == [True, True, False, False]
    assert (drawn(LADDER, replace(OPEN, min_p=0.25), 300) > 0).tolist() == [True, True, True, False]
    assert (drawn(LADDER, replace(OPEN, min_p=0.25, temperature=2.0), 300) > 0).all()


def test_penalties_and_bias_come_before_top_k() -> None:
    logits = np.array([3.0, 2.0, 1.0, -1.0], np.float32)
    counts = np.array([2, 0, 0, 1])
    penalised = replace(OPEN, top_k=1, repetition=2.0)
    assert sample(logits, penalised, 0, 0, counts).id == 1
    assert sample(logits, replace(penalised, logit_bias={2: 1.5}), 0, 0, counts).id == 2
    assert sample(logits, replace(GREEDY, logit_bias={0: -np.inf}), 0, 0, None).id == 1


@given(
    finite_logits,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([0.0, 0.25, -1.0]),
    st.sampled_from([0.0, 0.5, -2.0]),
)
def test_penalties_follow_their_definition(
    logits: np.ndarray, seed: int, repetition: float, frequency: float, presence: float
) -> None:
    counts = np.random.default_rng(seed).integers(0, 4, len(logits))
    sampling = replace(OPEN, repetition=repetition, frequency=frequency, presence=presence)
    found = penalize(logits, counts, sampling)
    assert found.dtype == np.float32
    for value, count, result in zip(logits.tolist(), counts.tolist(), found.tolist(), strict=True):
        expected = value
        if count:
            expected = value / repetition if value > 0 else value * repetition
            expected -= frequency * count + presence
        assert result == pytest.approx(expected, abs=1e-5)


def test_logprobs_are_those_of_the_penalised_logits_at_temperature_1() -> None:
    logits = np.array([4.0, 2.0, 0.0], np.float32)
    hot = replace(OPEN, temperature=5.0, repetition=2.0, top_k=3)
    found = sample(logits, hot, 0, 0, np.array([1, 0, 0]))
    cold = sample(np.array([2.0, 2.0, 0.0], np.float32), OPEN, 0, 0, None)
    assert found.top_ids == cold.top_ids == (0, 1, 2)
    np.testing.assert_allclose(found.top_logprobs, cold.top_logprobs, atol=1e-6)


def test_values_beyond_finite_numbers() -> None:
    logits = np.array([np.nan, -np.inf, 1.0, 0.0], np.float32)
    found = sample(logits, OPEN, 0, 0, None)
    assert found.top_ids == (2, 3, 0, 1)
    assert found.top_logprobs[2] == found.top_logprobs[3] == pytest.approx(-LOGIT_LIMIT)
    assert not drawn(logits, OPEN, 200)[:2].any()
    nothing = sample(np.full(5, np.nan, np.float32), OPEN, 0, 0, None)
    assert nothing.top_ids == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(nothing.top_logprobs, np.log(0.2), atol=1e-6)
    assert sample(np.array([0.0, np.inf], np.float32), GREEDY, 0, 0, None).logprob == 0


def test_inputs_stay_as_they_were() -> None:
    logits = np.array([1.0, np.nan, 3.0], np.float32)
    before = logits.copy()
    sample(logits, replace(GREEDY, repetition=2.0, logit_bias={0: 5.0}), 0, 0, np.array([1, 1, 1]))
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition", 0.0),
        ("repetition", float("inf")),
        ("temperature", float("inf")),
        ("frequency", float("nan")),
        ("presence", float("inf")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(OPEN, **{field: value})  # type: ignore[arg-type]


def test_which_requests_need_the_host() -> None:
    assert Sampling().host_reason is None
    assert replace(GREEDY, top_k=0).host_reason is None
    assert replace(OPEN, top_k=MAX_CANDIDATES).host_reason is None
    for sampling, word in [
        (OPEN, "top_k off"),
        (replace(OPEN, top_k=MAX_CANDIDATES + 1), f"top_k {MAX_CANDIDATES + 1}"),
        (replace(GREEDY, logit_bias={1: 1.0}), "bias"),
    ]:
        assert word in (sampling.host_reason or "")
