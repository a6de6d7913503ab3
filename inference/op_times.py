"""What each operation of a plan takes, measured on request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Any, Literal

from inference.executor import Executor, StepTimes
from inference.sequence import Sequence

_BUDGET_S = 0.3
"""After so long no further step begins: whoever asked is waiting, and a step of the CPU may take as long by itself."""
_MOST_STEPS = 9
"""Their median is steady on a GPU; an odd number, so that it is a step's own."""


@dataclass(frozen=True)
class OpTimes:
    """Seconds on the device: `ops` in the order of the plan, each timed on its own, and `whole` for the step at once.

    Medians of `steps` steps of `rows` tokens, after `depth` tokens. On a GPU the operations are passes of their own,
    each of which begins when the one before has ended, so that together they take longer than the whole.
    """

    phase: Literal["decode", "prefill"]
    ops: tuple[float, ...]
    whole: float
    rows: int
    depth: int
    steps: int


def time_ops(executor: Executor[Any], sequence: Sequence, phase: Literal["decode", "prefill"]) -> OpTimes:
    """Measure a decode step where `sequence` stands, or a prefill chunk in an empty one; `sequence` ends as it was.

    Raises DeviceUnavailable where the device has no clock for it, DoesNotFit where another sequence has no room.
    """
    steps, rows, depth = _time_steps(executor, sequence, phase)
    ops = tuple(median(each) for each in zip(*(step.ops for step in steps), strict=True))
    return OpTimes(phase, ops, median(step.whole for step in steps), rows, depth, len(steps))


def time_one_step(executor: Executor[Any], sequence: Sequence, phase: Literal["decode", "prefill"]) -> OpTimes:
    """As `time_ops`, but all figures are those of one step, of median length among `steps`: they belong together."""
    steps, rows, depth = _time_steps(executor, sequence, phase)
    typical = sorted(steps, key=lambda step: sum(step.ops))[len(steps) // 2]
    return OpTimes(phase, typical.ops, typical.whole, rows, depth, len(steps))


def _time_steps(
    executor: Executor[Any], sequence: Sequence, phase: Literal["decode", "prefill"]
) -> tuple[list[StepTimes], int, int]:
    """The steps, the tokens of each, and how many stand before them."""
    held = sequence.token_ids
    if phase == "decode":
        ids, step = list(held[-1:]) or [0], _before_last(sequence)
    else:
        ids, step = list(islice(cycle(held or (0,)), min(executor.chunk, sequence.context))), _empty(executor, sequence)
    with step as at:
        depth, began = len(at), time.perf_counter()
        steps = [executor.time_step(at.cache, ids)]
        while len(steps) < _MOST_STEPS and time.perf_counter() - began < _BUDGET_S:
            steps.append(executor.time_step(at.cache, ids))
    return steps, len(ids), depth


@contextmanager
def _before_last(sequence: Sequence) -> Iterator[Sequence]:
    """The sequence without its last token, which is computed again at the end."""
    last = sequence.token_ids[-1:]
    sequence.truncate(len(sequence) - len(last))
    try:
        yield sequence
    finally:
        if last:
            sequence.append(last)


@contextmanager
def _empty(executor: Executor[Any], like: Sequence) -> Iterator[Sequence]:
    other = Sequence(executor, executor.new_cache(like.context))
    try:
        yield other
    finally:
        other.close()
