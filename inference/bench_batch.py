"""Several sequences decoded together, a token of each in one step, beside one alone: `chat bench --batch`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence as Ids
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from inference.bench import FULL, GREEDY, SOFTWARE, Report, time_decode, time_steps
from inference.engine import Engine
from inference.executor import StepCost
from inference.sequence import Sequence


@dataclass(frozen=True)
class BatchSpeed:
    """Median speed of `sequences` together, in tokens a second of all of them, and as a multiple of one alone.

    `step_us` is a step's median time, `encode_us` the part of it in which Python encodes `dispatches`.
    """

    sequences: int
    tps: float
    times_one: float
    step_us: float
    dispatches: int
    encode_us: float
    runs_s: tuple[float, ...]


@dataclass(frozen=True)
class BatchReport:
    """The figures, over `generated` steps after `depth` tokens in each sequence. `one_tps` is one sequence alone."""

    model: str
    device: str
    adapter: str
    dtype: str
    kv_layout: str
    depth: int
    generated: int
    one_tps: float
    batches: tuple[BatchSpeed, ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """A table for people, its first row the heads."""
        head = ("SEQUENCES", "TOKENS/S", "TIMES ONE", "STEP", "DISPATCHES", "ENCODED IN")
        return (head, ("1, alone", f"{self.one_tps:,.1f}", "1.00", "", "", ""), *map(_row, self.batches))

    @property
    def legend(self) -> tuple[str, ...]:
        """What the figures are."""
        return (
            f"{self.model} on {self.adapter}, {self.dtype}, {self.kv_layout}",
            f"all sequences together, over {self.generated} steps after {self.depth:,} random tokens in each, greedy",
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def run(
    engine: Engine,
    counts: Ids[int],
    depth: int = 0,
    generate: int | None = None,
    repeats: int | None = None,
    seed: int = 0,
    progress: Report = lambda _: None,
) -> BatchReport:
    """Measure `generate` steps of each number of sequences in `counts`, each `repeats` times and once beforehand.

    The sequences have nothing in common. `progress` may raise Cancelled. Raises BatchRefused, ContextFull and
    DoesNotFit.
    """
    usual = SOFTWARE if engine.info.software else FULL
    generate, repeats = generate or usual.generate, repeats or usual.repeats
    random = np.random.default_rng(seed)
    with ExitStack() as opened:
        sequences = [engine.sequence() for _ in range(max(counts))]
        engine.executor.check_batch([sequence.cache for sequence in sequences])
        for index, sequence in enumerate(sequences):
            opened.callback(sequence.close)
            sequence.check_room(depth + 1 + generate)
            progress(f"filling the cache of sequence {index + 1} of {len(sequences)}")
            sequence.set_ids(random.integers(0, engine.info.vocab_size, depth).tolist())
        first = random.integers(0, engine.info.vocab_size, len(sequences)).tolist()

        def stage(done: str) -> None:
            progress(f"one alone: {done}")

        _, *alone = (time_decode(engine, sequences[0], first[0], generate, stage)[0] for _ in range(repeats + 1))
        one_tps = generate / statistics.median(alone)
        batches = []
        for count in counts:
            _, *runs = (
                _time_batch(engine, sequences[:count], first[:count], generate, progress) for _ in range(repeats + 1)
            )
            seconds = statistics.median(elapsed for elapsed, _ in runs)
            cost = runs[-1][1]
            tps = count * generate / seconds
            times = tuple(elapsed for elapsed, _ in runs)
            step_us = seconds / generate * 1e6
            batches.append(BatchSpeed(count, tps, tps / one_tps, step_us, cost.dispatches, cost.encode_us, times))
    info = engine.info
    return BatchReport(
        info.model, info.device, info.adapter, info.dtype, info.kv_layout, depth, generate, one_tps, tuple(batches)
    )


def _time_batch(
    engine: Engine, sequences: Ids[Sequence], first: Ids[int], generate: int, progress: Report
) -> tuple[float, StepCost]:
    """Seconds for `generate` steps after one that appends `first`; the caches are as before afterwards."""
    caches = [sequence.cache for sequence in sequences]
    stream = engine.executor.stream_many(caches, first, [GREEDY] * len(caches), lambda: True)

    def stage(done: int) -> None:
        progress(f"{len(sequences)} together: {done} of {generate} steps")

    return time_steps(engine, stream, sequences, generate, stage)


def _row(speed: BatchSpeed) -> tuple[str, ...]:
    host = (str(speed.dispatches), f"{speed.encode_us:,.0f} us") if speed.dispatches else ("", "")
    return (str(speed.sequences), f"{speed.tps:,.1f}", f"{speed.times_one:.2f}", f"{speed.step_us:,.0f} us", *host)
