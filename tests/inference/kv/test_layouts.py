"""Whole models over every layout: after any history of appends, truncations and forks, the logits of contiguous."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from inference.cpu.executor import NumpyExecutor
from inference.executor import Executor
from inference.kv.choose import LAYOUTS, choose_layouts
from inference.kv.layout import LayerGroup
from inference.models.config import ModelConfig
from inference.sequence import Sequence as TokenSequence
from tests.conftest import DATA
from tests.inference.opening import open_store

EXACT = {"contiguous", "paged", "ring", "tiered"}
ABSOLUTE = 1e-4
"""Largest difference from contiguous in any logit, on the exact layouts."""
RELATIVE = {"tiered-int8": 0.03, "tiered-int4": 0.25, "bdpa": 0.05}
"""Relative L2 of all logits together on the others. Those of one history may be off by twice as much."""
DEVICES = 2e-3
"""Largest difference between WebGPU and NumPy, on the exact layouts."""

CONTEXT = 400
CHUNK = 32
HOT = {"tiered": 16, "tiered-int8": 128, "tiered-int4": 128}
"""Small steps and hot tiers, so that tokens soon grow cold and rings go round."""

PAIRS = [
    (family, layout)
    for family in ("llama", "gemma3_text")
    for layout in LAYOUTS
    if layout != "contiguous" and (family, layout) != ("llama", "ring")
]


# Histories


@dataclass(frozen=True)
class Append:
    """Append `count` random ids below `vocabulary` to sequence `of` (of those that there are by then)."""

    of: int
    count: int
    vocabulary: int
    seed: int

    @property
    def ids(self) -> list[int]:
        drawn: list[int] = np.random.default_rng(self.seed).integers(0, self.vocabulary, self.count).tolist()
        return drawn


@dataclass(frozen=True)
class Truncate:
    """Keep this part of a sequence."""

    of: int
    part: float


@dataclass(frozen=True)
class Fork:
    """Fork a sequence; both go on."""

    of: int


Step = Append | Truncate | Fork


def appends(least: int, most: int, last: int = 7) -> st.SearchStrategy[Append]:
    """Ids of which few come twice, or most do."""
    return st.builds(
        Append, st.integers(0, last), st.integers(least, most), st.sampled_from([512, 8]), st.integers(0, 2**32 - 1)
    )


first_steps = st.lists(appends(50, 70, last=0), min_size=3, max_size=3)
later_steps = st.lists(
    st.one_of(
        appends(1, 70),
        appends(1, 2),
        st.builds(Truncate, st.integers(0, 7), st.floats(0, 1)),
        st.builds(Fork, st.integers(0, 7)),
    ),
    min_size=1,
    max_size=10,
)
histories = st.builds(list.__add__, first_steps, later_steps)
"""They begin with more tokens than a hot tier holds."""


def run(executor: Executor[Any], history: Sequence[Step]) -> Iterator[np.ndarray]:
    """The logits after each append. Appends that the context has no room for are left out."""
    sequences = [TokenSequence(executor, executor.new_cache(CONTEXT))]
    for step in history:
        sequence = sequences[step.of % len(sequences)]
        match step:
            case Append():
                if len(sequence) + step.count <= CONTEXT:
                    yield sequence.append(step.ids)
            case Truncate(part=part):
                sequence.truncate(round(part * len(sequence)))
            case Fork():
                sequences.append(sequence.fork())
    # Both sides of every fork go on, also those that the history left alone.
    for sequence in sequences:
        if len(sequence) < CONTEXT:
            yield sequence.append([5])
    for sequence in sequences:
        sequence.close()


# Executors


class SmallSteps(NumpyExecutor):
    """The NumPy executor in steps of CHUNK tokens."""

    chunk = CHUNK
    logits_chunk = CHUNK


def groups_for(config: ModelConfig, layout: str) -> tuple[LayerGroup, ...]:
    """The layers' layouts, with small hot tiers."""
    return tuple(replace(group, hot=HOT.get(group.layout, 0)) for group in choose_layouts(config, layout))


@cache
def numpy_executor(family: str, layout: str) -> SmallSteps:
    config, store = open_store(DATA / "tiny" / family / "gguf" / "model-f16.gguf")
    return SmallSteps(config, store, groups_for(config, layout))


@pytest.fixture
def webgpu_executor(family: str, layout: str) -> Iterator[Executor[Any]]:
    from inference.gpu.device import choose_adapter
    from inference.gpu.executor import WebGpuExecutor

    config, store = open_store(DATA / "tiny" / family / "gguf" / "model-f16.gguf")
    executor = WebGpuExecutor(config, store, *choose_adapter(), groups_for(config, layout))
    executor.load()
    yield executor
    executor.close()


# Comparisons


@dataclass
class Difference:
    """Sums over the logits compared so far: of squared differences and of squares, and the largest difference."""

    of_squares: float = 0.0
    squares: float = 0.0
    largest: float = 0.0

    @property
    def relative(self) -> float:
        return (self.of_squares / self.squares) ** 0.5

    def add(self, found: np.ndarray, expected: np.ndarray) -> None:
        self.of_squares += float(np.square(found - expected).sum())
        self.squares += float(np.square(expected).sum())
        self.largest = max(self.largest, float(np.abs(found - expected).max()))


@cache
def contiguous_logits(family: str, history: tuple[Step, ...]) -> list[np.ndarray]:
    return list(run(numpy_executor(family, "contiguous"), history))


def for_each_history(check: Callable[[list[Step]], None], examples: int, always_the_same: bool) -> None:
    with threadpool_limits(1):  # BLAS's threads wait on each other longer than they share such small products
        settings(
            max_examples=examples,
            derandomize=always_the_same,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(given(histories)(check))()


def check_against_contiguous(family: str, layout: str, examples: int, always_the_same: bool) -> None:
    overall = Difference()

    def check(history: list[Step]) -> None:
        this = Difference()
        found_logits = run(numpy_executor(family, layout), history)
        for found, expected in zip(found_logits, contiguous_logits(family, tuple(history)), strict=True):
            this.add(found, expected)
            overall.add(found, expected)
        if layout in EXACT:
            assert this.largest <= ABSOLUTE
        else:
            assert this.relative <= 2 * RELATIVE[layout]

    for_each_history(check, examples, always_the_same)
    if layout not in EXACT:
        assert 0 < overall.relative <= RELATIVE[layout]


@pytest.mark.parametrize(("family", "layout"), PAIRS)
def test_any_history(family: str, layout: str) -> None:
    check_against_contiguous(family, layout, examples=20, always_the_same=True)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), PAIRS)
def test_any_history_many_times(family: str, layout: str) -> None:
    check_against_contiguous(family, layout, examples=150, always_the_same=False)


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "layout"), [pair for pair in PAIRS if pair[1] in EXACT])
def test_any_history_on_webgpu(webgpu_executor: Executor[Any], family: str, layout: str) -> None:
    def check(history: list[Step]) -> None:
        this = Difference()
        for found, expected in zip(
            run(webgpu_executor, history), run(numpy_executor(family, layout), history), strict=True
        ):
            this.add(found, expected)
        assert this.largest <= DEVICES

    for_each_history(check, examples=4, always_the_same=True)
