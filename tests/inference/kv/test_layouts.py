"""Whole models over every layout: after any history of appends, truncations and forks, the logits of contiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.cpu.executor import NumpyExecutor
from inference.executor import Executor
from inference.kv.choose import LAYOUTS, choose_layouts
from inference.kv.layout import LayerGroup
from inference.models.config import ModelConfig
from inference.sequence import Sequence as TokenSequence
from tests.conftest import DATA
from tests.inference.opening import open_store

FAMILIES = ["llama", "gemma3_text"]
EXACT = {"contiguous", "paged", "ring", "tiered"}
RELATIVE = {"tiered-int8": 0.03, "tiered-int4": 0.25, "bdpa": 0.05}
"""Relative L2 of all logits of a history; each of the exact layouts' is within ABSOLUTE."""
ABSOLUTE = 1e-4
DEVICES = 2e-3
"""Largest difference between WebGPU and NumPy, on the exact layouts."""

CONTEXT = 400
CHUNK = 32
EXACT_HOT = 16
"""Small steps, and a small hot tier where that costs no precision, so that tokens soon grow cold and rings go round."""

PAIRS = [(family, layout) for family in FAMILIES for layout in LAYOUTS[1:] if (family, layout) != ("llama", "ring")]


class SmallSteps(NumpyExecutor):
    """The NumPy executor in steps of CHUNK tokens."""

    chunk = CHUNK
    logits_chunk = CHUNK


def groups_for(config: ModelConfig, layout: str) -> tuple[LayerGroup, ...]:
    """The layers' layouts, with a small hot tier where cold tokens are as exact."""
    groups = choose_layouts(config, layout)
    return tuple(replace(group, hot=EXACT_HOT) if group.layout == "tiered" else group for group in groups)


@cache
def numpy_executor(family: str, layout: str) -> SmallSteps:
    config, store = open_store(DATA / "tiny" / family / "gguf" / "model-f16.gguf")
    return SmallSteps(config, store, groups_for(config, layout))


@dataclass(frozen=True)
class Append:
    """Append `ids` to sequence `of` (of those that there are by then)."""

    of: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Truncate:
    """Keep this part of the sequence."""

    of: int
    part: float


@dataclass(frozen=True)
class Fork:
    of: int


Step = Append | Truncate | Fork


def ids(at_least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Tokens of many ids, few of which come twice, or of few."""
    lists = [st.lists(st.integers(0, last), min_size=at_least, max_size=most) for last in (511, 7)]
    return st.one_of(lists).map(tuple)


first_appends = st.lists(st.builds(Append, st.just(0), ids(50, 70)), min_size=3, max_size=3)
later_steps = st.lists(
    st.one_of(
        st.builds(Append, st.integers(0, 7), ids(1, 70)),
        st.builds(Append, st.integers(0, 7), ids(1, 2)),
        st.builds(Truncate, st.integers(0, 7), st.floats(0, 1)),
        st.builds(Fork, st.integers(0, 7)),
    ),
    min_size=1,
    max_size=10,
)
histories = st.builds(list.__add__, first_appends, later_steps)
"""They begin with more tokens than a hot tier holds."""


def run(executor: Executor[Any], history: Sequence[Step]) -> Iterator[np.ndarray]:
    """The logits after each append. Appends that the context has no room for are left out."""
    sequences = [TokenSequence(executor, executor.new_cache(CONTEXT))]
    for step in history:
        sequence = sequences[step.of % len(sequences)]
        match step:
            case Append(ids=ids):
                if len(sequence) + len(ids) <= CONTEXT:
                    yield sequence.append(ids)
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


def compare(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], layout: str, most: float) -> None:
    a, b = np.array(found), np.array(expected)
    error = np.abs(a - b).max() if layout in EXACT else np.linalg.norm(a - b) / np.linalg.norm(b)
    assert error <= most, f"{layout}: {error}"


def check_against_contiguous(family: str, layout: str, history: Sequence[Step]) -> None:
    found, expected = (list(run(numpy_executor(family, name), history)) for name in (layout, "contiguous"))
    compare(found, expected, layout, RELATIVE.get(layout, ABSOLUTE))


@pytest.mark.parametrize(("family", "layout"), PAIRS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_any_history(family: str, layout: str, history: list[Step]) -> None:
    check_against_contiguous(family, layout, history)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), PAIRS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_any_history_many_times(family: str, layout: str, history: list[Step]) -> None:
    check_against_contiguous(family, layout, history)
