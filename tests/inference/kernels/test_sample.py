"""The sampler on the GPU against the reference in NumPy: the same tokens from the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from inference.kernels import sample as kernel
from inference.kernels.dispatch import STATE, Binding, Dispatch, KernelContext, tensor
from inference.plan.ops import Op, Sample, TensorRef
from inference.sampler import choose_candidate, penalize, sample, uniform
from inference.sampling import LOGIT_LIMIT, MAX_CANDIDATES, Sampled, Sampling
from tests.inference.kernels.harness import POISON, Gpu, run

pytestmark = pytest.mark.gpu

TOKENS, RESULT = Binding("tokens"), Binding("result")
SEED = 0x123456789ABCDEF0
OPEN = Sampling(temperature=1.0, top_k=64, top_p=1.0, min_p=0.0)
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Outcome:
    """What the last dispatch left behind."""

    sampled: Sampled
    state: list[int]
    tokens: np.ndarray
    counts: np.ndarray


def make_dispatches(gpu: Gpu, vocab_size: int) -> tuple[Dispatch, ...]:
    logits = TensorRef("logits", 1, vocab_size, "f32")
    op = Op("sample", "sample", None, (logits,), TensorRef("sampled", 1, 1, "f32"), Sample())
    context = KernelContext(gpu.caps, 1, "f32", 1, {})
    return kernel.dispatches(op, kernel.choose(op, context), context)


def run_sampler(
    gpu: Gpu,
    logits: np.ndarray,
    sampling: Sampling,
    position: int,
    counts: np.ndarray | None = None,
    rows: int = 1,
    steps: int = 1,
) -> Outcome:
    """Sample the token that will stand at `position`, after a step of `rows`; then `steps` - 1 more times."""
    size = len(logits)
    dispatches = make_dispatches(gpu, size) * steps
    inputs = {
        tensor(TensorRef("logits", 1, size, "f32")): logits,
        kernel.SETTINGS: kernel.pack_settings(sampling, SEED),
        kernel.COUNTS: np.zeros(size, np.uint32) if counts is None else counts.astype(np.uint32),
        STATE: np.array([position - rows, rows], np.uint32),
    }
    outputs = {
        kernel.COUNTS: ((size,), np.uint32),
        STATE: ((2,), np.uint32),
        TOKENS: ((4,), np.uint32),
        RESULT: ((kernel.RESULT_WORDS,), np.uint32),
        kernel.SCRATCH: ((kernel.scratch_bytes(size) // 4,), np.uint32),
    }
    found = run(gpu, dispatches, inputs, outputs)
    (sampled,) = kernel.unpack_results(found[RESULT][None])
    return Outcome(sampled, found[STATE].tolist(), found[TOKENS], found[kernel.COUNTS])


def ids_near_a_boundary(
    logits: np.ndarray, sampling: Sampling, position: int, counts: np.ndarray | None, distance: float = 1e-5
) -> set[int]:
    """Ids that the reference would choose with the draw, top-p or min-p moved by at most `distance`."""
    if sampling.has_penalties:
        assert counts is not None
        logits = penalize(logits, counts, sampling)
    order = np.lexsort((np.arange(len(logits)), -logits))[: sampling.top_k]
    values = logits[order].astype(np.float64)
    moves = (-distance, 0.0, distance)
    return {
        int(order[choose_candidate(values, moved, uniform(SEED, position) + move)])
        for move in moves
        for top_p in moves
        for min_p in moves
        for moved in [
            replace(
                sampling,
                top_p=min(1.0, sampling.top_p + top_p),
                min_p=min(1.0, max(0.0, sampling.min_p + min_p)),
            )
        ]
    }


def check(
    gpu: Gpu,
    logits: np.ndarray,
    sampling: Sampling,
    position: int,
    counts: np.ndarray | None = None,
    exact: bool = False,
) -> bool:
    """Compare with the reference; True where the ids are equal, else the draw was checked to be near a boundary."""
    outcome = run_sampler(gpu, logits, sampling, position, counts)
    expected = sample(logits, sampling, SEED, position, counts)
    found = outcome.sampled
    assert found.top_ids == expected.top_ids
    np.testing.assert_allclose(found.top_logprobs, expected.top_logprobs, rtol=1e-6, atol=1e-4)
    if found.id == expected.id:
        np.testing.assert_allclose(found.logprob, expected.logprob, rtol=1e-6, atol=1e-4)
    else:
        assert not exact
        assert found.id in ids_near_a_boundary(logits, sampling, position, counts)
    assert outcome.tokens.tolist() == [found.id, POISON, POISON, POISON]
    assert outcome.state == [position, 1]
    before = np.zeros(len(logits), np.uint32) if counts is None else counts
    after = outcome.counts.astype(np.int64) - before
    assert np.flatnonzero(after).tolist() == ([found.id] if sampling.has_penalties else [])
    assert after[found.id] == sampling.has_penalties
    return found.id == expected.id


def run_stages(gpu: Gpu, logits: np.ndarray, count: int) -> np.ndarray:
    """The lists that the first `count` dispatches leave: entries (KEEP + 1, lists, 2) of the last of them."""
    size = len(logits)
    stage = kernel.stages(size)[count - 1]
    inputs = {
        tensor(TensorRef("logits", 1, size, "f32")): logits,
        kernel.SETTINGS: kernel.pack_settings(OPEN, SEED),
        kernel.COUNTS: np.zeros(size, np.uint32),
    }
    words = kernel.scratch_bytes(size) // 4
    found = run(gpu, make_dispatches(gpu, size)[:count], inputs, {kernel.SCRATCH: ((words,), np.uint32)})
    entries = found[kernel.SCRATCH].reshape(-1, 2)[stage.write_to :]
    return entries[: kernel.LIST_ENTRIES * stage.lists_out].reshape(kernel.LIST_ENTRIES, stage.lists_out, 2)


def best_of(logits: np.ndarray, ids: np.ndarray) -> list[int]:
    """The best of `ids`, as a list holds them."""
    values = np.where(np.isnan(logits), -np.inf, logits)[ids]
    best = ids[np.lexsort((ids, -np.clip(values, -LOGIT_LIMIT, LOGIT_LIMIT)))][:MAX_CANDIDATES].tolist()
    return [*best, *[kernel.NO_ID] * (MAX_CANDIDATES - len(best))]


def border_tie(size: int, rng: np.random.Generator) -> np.ndarray:
    """In each slice of the first 1,024 on, many tie with the last that is kept."""
    ranks = np.stack([rng.permutation(1024) for _ in range(-(-size // 1024))]).reshape(-1)[:size]
    return np.where(ranks < MAX_CANDIDATES - 1, ranks + 1.0, np.where(ranks < 400, 0.5, -ranks))


LOGITS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "normal": lambda size, rng: rng.standard_normal(size) * 3,
    "across zero": lambda size, rng: rng.standard_normal(size) * 3 - 6,
    "equal": lambda size, rng: np.full(size, 1.5),
    "all but few equal": lambda size, rng: np.where(rng.random(size) < 0.01, rng.standard_normal(size) * 9, -2.0),
    "few levels": lambda size, rng: rng.integers(-2, 3, size) * 0.5,
    "tie at the border": border_tie,
    "a tie that fits": lambda size, rng: np.where(np.arange(size) % 1024 < MAX_CANDIDATES, 4.0, 3.0),
    "next to each other": lambda size, rng: 1 + rng.integers(0, 3000, size) * 2.0**-23,
    "next to each other, one far": lambda size, rng: np.append(1 + np.arange(size - 1) * 2.0**-23, 1e30),
    "of all sizes": lambda size, rng: rng.choice([-1, 1], size) * 2 ** rng.uniform(-120, 99, size),
    "zeros of both signs": lambda size, rng: rng.choice([-0.0, 0.0], size),
    "infinities and NaN": lambda size, rng: rng.choice([np.inf, -np.inf, np.nan, 1.0, 2.0, 1e38], size),
    "nearly all NaN": lambda size, rng: np.where(rng.random(size) < 0.98, np.nan, rng.standard_normal(size)),
    "rising": lambda size, rng: np.arange(size, dtype=np.float32),
    "falling": lambda size, rng: -np.arange(size, dtype=np.float32),
}


@pytest.mark.parametrize("name", LOGITS)
def test_lists_hold_the_best_in_order(gpu: Gpu, name: str) -> None:
    for size in (4097, 5000):  # a slice of one logit, and one that is not full
        logits = LOGITS[name](size, np.random.default_rng(9)).astype(np.float32)
        entries = run_stages(gpu, logits, 1)
        items = kernel.stages(size)[0].items
        for index, ids in enumerate(np.split(np.arange(size), range(items, size, items))):
            assert entries[:-1, index, 1].tolist() == best_of(logits, ids)
            bounded = np.clip(np.nan_to_num(logits[ids], nan=-np.inf), -LOGIT_LIMIT, LOGIT_LIMIT)
            total = np.exp(bounded - bounded.max()).sum(dtype=np.float64)
            assert entries[-1, index, 1:].view(np.float32) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", ["normal", "equal", "rising", "falling", "nearly all NaN"])
def test_lists_merge_to_the_best_in_order(gpu: Gpu, name: str) -> None:
    size = 300_000
    logits = LOGITS[name](size, np.random.default_rng(10)).astype(np.float32)
    second = kernel.stages(size)[1]
    ids = run_stages(gpu, logits, 1)[:-1, :, 1].reshape(-1)
    entries = run_stages(gpu, logits, 2)
    for index in range(second.lists_out):
        among = ids[index * second.items : (index + 1) * second.items]
        assert entries[:-1, index, 1].tolist() == best_of(logits, among[among != kernel.NO_ID])
    check(gpu, logits, OPEN, 5)


def random_case(size: int, rng: np.random.Generator) -> tuple[np.ndarray, Sampling, np.ndarray]:
    """Logits, settings and counts."""
    logits = (rng.standard_normal(size) * rng.choice([0.3, 2.0, 6.0]) + rng.uniform(-20, 20)).astype(np.float32)
    sampling = Sampling(
        temperature=float(rng.choice([0.3, 0.7, 1.0, 1.5, 3.0])),
        top_k=int(rng.integers(1, 65)),
        top_p=float(rng.choice([0.5, 0.8, 0.95, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.2])),
        repetition=float(rng.choice([1.0, 1.0, 1.2, 0.8])),
        frequency=float(rng.choice([0.0, 0.0, 0.3])),
        presence=float(rng.choice([0.0, 0.0, 0.5])),
    )
    counts = rng.integers(0, 4, size) * (rng.random(size) < 0.3)
    return logits, sampling, counts


@pytest.mark.parametrize(
    ("size", "cases"),
    [(512, 300), (49_152, 20), (262_144, 3), (300_000, 2), (1, 2), (63, 4), (65, 4), (4096, 4), (4097, 4)],
)
def test_same_tokens_as_numpy(gpu: Gpu, size: int, cases: int) -> None:
    rng = np.random.default_rng(size)
    equal = 0
    for _ in range(cases):
        logits, sampling, counts = random_case(size, rng)
        equal += check(gpu, logits, sampling, int(rng.integers(1, 2**31)), counts)
    assert equal >= cases - cases // 100


@pytest.mark.parametrize("size", [512, 4097])
def test_greedy_is_the_best_at_every_position(gpu: Gpu, size: int) -> None:
    rng = np.random.default_rng(2)
    for position in range(1, 6):
        logits = rng.standard_normal(size).astype(np.float32)
        check(gpu, logits, replace(GREEDY, top_k=int(rng.integers(0, 200))), position, exact=True)


@pytest.mark.parametrize("size", [7, 512, 4097, 49_152])
@pytest.mark.parametrize("levels", [1, 2, 40])
def test_ties_go_by_id(gpu: Gpu, size: int, levels: int) -> None:
    rng = np.random.default_rng(3)
    for position in range(1, 5):
        logits = rng.integers(0, levels, size).astype(np.float32) - 3
        check(gpu, logits, replace(OPEN, temperature=2.0), position)
        check(gpu, logits, GREEDY, position, exact=True)


def test_the_64th_candidate_can_be_drawn_and_no_later_one(gpu: Gpu) -> None:
    logits = np.zeros(4097, np.float32)  # 64 equal shares: the draw alone gives the index
    for position in range(1, 60):
        outcome = run_sampler(gpu, logits, OPEN, position)
        assert outcome.sampled.id == int(uniform(SEED, position) * 64)
    last = next(position for position in range(1, 10_000) if uniform(SEED, position) * 64 >= 63)
    assert run_sampler(gpu, logits, OPEN, last).sampled.id == 63


@pytest.mark.parametrize("size", [7, 512, 4097])
def test_minus_infinity_and_nan_are_the_lowest(gpu: Gpu, size: int) -> None:
    rng = np.random.default_rng(4)
    for value in (-np.inf, np.nan, -np.nan):
        logits = np.full(size, value, np.float32)
        check(gpu, logits, OPEN, 3)
        some = rng.choice(size, 3, replace=False)
        logits[some] = rng.standard_normal(3)
        check(gpu, logits, OPEN, 4)
        assert run_sampler(gpu, logits, replace(OPEN, temperature=1000.0), 5).sampled.id in some
    mixed = rng.standard_normal(size).astype(np.float32)
    mixed[rng.random(size) < 0.3] = np.nan
    mixed[rng.random(size) < 0.3] = -np.inf
    counts = rng.integers(0, 3, size)
    for repetition in (0.5, 2.0):
        check(gpu, mixed, replace(OPEN, repetition=repetition, presence=0.5), 6, counts)
    mixed[size // 2] = np.inf
    check(gpu, mixed, OPEN, 7, exact=True)


def test_both_zeros_tie(gpu: Gpu) -> None:
    logits = np.array([-0.0, 0.0, -0.0, -1.0, 0.0], np.float32)
    found = run_sampler(gpu, logits, GREEDY, 1).sampled
    assert found.id == 0
    assert found.top_ids == (0, 1, 2, 4, 3)


@pytest.mark.parametrize(
    "sampling",
    [
        replace(OPEN, top_k=1),
        replace(OPEN, top_p=1e-6),
        replace(OPEN, min_p=1.0),
        replace(OPEN, temperature=1e-9),
        replace(OPEN, temperature=1e-40),
    ],
)
def test_settings_that_leave_one_candidate(gpu: Gpu, sampling: Sampling) -> None:
    rng = np.random.default_rng(5)
    logits = rng.permutation(4097).astype(np.float32) / 100
    for position in range(1, 8):
        check(gpu, logits, sampling, position, exact=True)
        assert run_sampler(gpu, logits, sampling, position).sampled.id == int(np.argmax(logits))


def test_min_p_1_keeps_the_ties_of_the_best(gpu: Gpu) -> None:
    logits = np.zeros(512, np.float32)
    logits[[10, 200, 511]] = 2.5
    ids = [run_sampler(gpu, logits, replace(OPEN, min_p=1.0, temperature=0.3), position) for position in range(1, 30)]
    assert {outcome.sampled.id for outcome in ids} == {10, 200, 511}


def test_a_great_temperature_makes_candidates_equal(gpu: Gpu) -> None:
    logits = np.random.default_rng(6).standard_normal(512).astype(np.float32)
    order = np.argsort(-logits)
    for position in range(1, 20):
        found = run_sampler(gpu, logits, replace(OPEN, temperature=1e38), position).sampled
        assert found.id == order[int(uniform(SEED, position) * 64)]


def test_penalties_change_the_order(gpu: Gpu) -> None:
    logits = np.full(4097, -4.0, np.float32)
    logits[[7, 4000, 9, 30]] = [6.0, 5.0, -1.0, -1.0]
    counts = np.zeros(4097, np.int64)
    counts[[7, 30]] = [3, 1]
    for sampling in (
        replace(GREEDY, repetition=2.0),
        replace(GREEDY, frequency=0.5),
        replace(GREEDY, presence=1.25),
        replace(GREEDY, repetition=2.0, frequency=0.25, presence=-0.5),
    ):
        check(gpu, logits, sampling, 3, counts, exact=True)
        assert run_sampler(gpu, logits, sampling, 3, counts).sampled.id == 4000


def test_counts_are_left_alone_without_penalties(gpu: Gpu) -> None:
    logits = np.random.default_rng(7).standard_normal(512).astype(np.float32)
    counts = np.full(512, 0xFFFFFFFF, np.uint32)
    outcome = run_sampler(gpu, logits, OPEN, 9, counts)
    assert (outcome.counts == 0xFFFFFFFF).all()
    assert outcome.sampled == run_sampler(gpu, logits, OPEN, 9).sampled


def test_after_a_chunk_the_token_stands_behind_its_rows(gpu: Gpu) -> None:
    logits = np.zeros(63, np.float32)
    outcome = run_sampler(gpu, logits, OPEN, position=40, rows=13)
    assert outcome.state == [40, 1]
    assert outcome.sampled.id == sample(logits, OPEN, SEED, 40, None).id


@pytest.mark.parametrize("size", [63, 4097])
def test_steps_follow_each_other_without_the_host(gpu: Gpu, size: int) -> None:
    rng = np.random.default_rng(8)
    logits = rng.standard_normal(size).astype(np.float32)
    sampling = replace(OPEN, repetition=1.5, frequency=1.0)
    counts = rng.integers(0, 2, size)
    outcome = run_sampler(gpu, logits, sampling, 20, counts, rows=3, steps=6)
    for position in range(20, 26):
        expected = sample(logits, sampling, SEED, position, counts)
        counts[expected.id] += 1
    assert outcome.state == [25, 1]
    assert outcome.sampled.id == expected.id
    assert outcome.counts.tolist() == counts.tolist()


@pytest.mark.parametrize(("size", "most"), [(512, 1), (4096, 1), (49_152, 2), (262_144, 2), (2_000_000, 3)])
def test_few_dispatches_of_few_buffers(gpu: Gpu, size: int, most: int) -> None:
    chain = make_dispatches(gpu, size)
    assert len(chain) <= most
    assert all(len(dispatch.bindings) <= 8 for dispatch in chain)
    assert chain[-1].grid == (1, 1, 1)


def test_requests_for_the_host_are_refused() -> None:
    with pytest.raises(ValueError, match="top_k off"):
        kernel.pack_settings(replace(OPEN, top_k=0), 1)
    with pytest.raises(ValueError, match="bias"):
        kernel.pack_settings(replace(GREEDY, logit_bias={1: 2.0}), 1)
