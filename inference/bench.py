"""Speed and memory of an engine, measured: the report behind `chat bench`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from collections.abc import Sequence as Ids
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from inference.engine import Engine
from inference.events import MemoryStats
from inference.executor import SampleRequest, StepCost
from inference.sampling import Sampling
from inference.sequence import Sequence

Report = Callable[[str], None]
GREEDY = SampleRequest(Sampling(temperature=0), seed=0, context_ids=())


@dataclass(frozen=True)
class Effort:
    """How much is measured where the caller does not say."""

    prompts: tuple[int, ...]
    generate: int
    repeats: int


FULL = Effort(prompts=(128, 512), generate=64, repeats=3)
# A software adapter takes up to a second for a token.
SOFTWARE = Effort(prompts=(64,), generate=16, repeats=1)


@dataclass(frozen=True)
class PrefillSpeed:
    """A prompt of `tokens` until the first token of the reply: its median time, and as a rate of prompt tokens."""

    tokens: int
    tps: float
    ttft_s: float
    runs_s: tuple[float, ...]


@dataclass(frozen=True)
class DecodeSpeed:
    """Median speed of `tokens` decode steps after `depth` tokens, and what a step costs the host, in microseconds.

    `encode_us` is Python's time to encode the step's dispatches, `finish_us` and `submit_us` are the library's to
    finish and to submit them, in threads of their own, `wait_us` that spent waiting for results; all zero on the CPU.
    """

    depth: int
    tokens: int
    tps: float
    runs_s: tuple[float, ...]
    dispatches_per_token: int
    encode_us_per_dispatch: float
    encode_us: float
    finish_us: float
    submit_us: float
    wait_us: float


@dataclass(frozen=True)
class BenchReport:
    """The figures. `notices` says what was left out; `memory` is as at the end, with the peaks of the whole process.

    `trace` is the file with a trace of what was measured, if one was asked for.
    """

    model: str
    device: str
    adapter: str
    dtype: str
    kv_layout: str
    load_s: float
    repeats: int
    prefill: tuple[PrefillSpeed, ...]
    decode: tuple[DecodeSpeed, ...]
    memory: MemoryStats
    notices: tuple[str, ...]
    trace: str | None = None

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """(label, value) pairs for people."""
        memory = self.memory
        return (
            ("model", f"{self.model}, loaded in {self.load_s:.2f} s"),
            ("device", f"{self.device}, {self.adapter}, {self.dtype}"),
            ("KV cache", self.kv_layout),
            *((f"prompt of {each.tokens}", _prefill_cell(each)) for each in self.prefill),
            *((f"decode after {each.depth}", _decode_cell(each)) for each in self.decode),
            *(("  host, per token", _cost_cell(each)) for each in self.decode[-1:] if each.dispatches_per_token),
            (
                "memory",
                f"weights {_mib(memory.weights_bytes)}, KV {_mib(memory.kv_bytes)}, "
                f"scratch {_mib(memory.scratch_bytes)}, peak {_mib(memory.peak_bytes)}",
            ),
            ("process", f"peak {_mib(memory.host_peak_bytes)}"),
            (
                "measured",
                f"medians of {self.repeats}, greedy, random tokens"
                if self.repeats > 1
                else "once, greedy, random tokens",
            ),
            *([("trace", f"{self.trace}; chrome://tracing and ui.perfetto.dev show it")] if self.trace else []),
            *(("notice", notice) for notice in self.notices),
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def run(
    engine: Engine,
    prompts: Ids[int] | None = None,
    generate: int | None = None,
    depths: Ids[int] = (0,),
    repeats: int | None = None,
    seed: int = 0,
    progress: Report = lambda _: None,
) -> BenchReport:
    """Measure prefill for each length in `prompts` and `generate` decode steps at each depth, `repeats` times each.

    Prompts are random ids drawn with `seed`, decoding is greedy and does not stop. Each measurement is run once
    beforehand, so that no kernel is compiled within it. What is not given is chosen by device, and cut on a software
    adapter, with a notice. `progress` hears what is under way after each chunk and token, and may raise Cancelled.
    Raises ContextFull.
    """
    usual = SOFTWARE if engine.info.software else FULL
    cuts = _cuts(prompts, generate, repeats) if usual is SOFTWARE else ()
    notices = (f"WebGPU runs on the processor here, so less is measured: {', '.join(cuts)}",) if cuts else ()
    prompts = usual.prompts if prompts is None else tuple(prompts)
    generate = usual.generate if generate is None else generate
    repeats = usual.repeats if repeats is None else repeats
    sequence = engine.sequence()
    bench = _Bench(engine, sequence, np.random.default_rng(seed), repeats, progress)
    try:
        for size in prompts:
            sequence.check_room(size)
        for depth in depths:
            sequence.check_room(depth + 1 + generate)
        prefill = tuple(bench.prefill(size) for size in prompts)
        decode = tuple(bench.decode(depth, generate) for depth in depths)
        memory = engine.memory()
    finally:
        sequence.close()
    info = engine.info
    return BenchReport(
        info.model,
        info.device,
        info.adapter,
        info.dtype,
        info.kv_layout,
        info.load_s,
        repeats,
        prefill,
        decode,
        memory,
        notices,
    )


def _cuts(prompts: Ids[int] | None, generate: int | None, repeats: int | None) -> tuple[str, ...]:
    """What a software adapter measures less of, among what was not asked for."""
    lengths = f"a prompt of {SOFTWARE.prompts[0]} tokens instead of {' and '.join(map(str, FULL.prompts))}"
    cuts = (
        (prompts, lengths),
        (generate, f"{SOFTWARE.generate} tokens generated instead of {FULL.generate}"),
        (repeats, f"{SOFTWARE.repeats} run of each instead of {FULL.repeats}"),
    )
    return tuple(text for asked, text in cuts if asked is None)


@dataclass(frozen=True)
class _Bench:
    engine: Engine
    sequence: Sequence
    random: np.random.Generator
    repeats: int
    progress: Report

    def prefill(self, size: int) -> PrefillSpeed:
        ids = self._ids(size)
        _, *runs = (self._time_prefill(ids, self._stage(f"prompt of {size}", turn)) for turn in range(self.repeats + 1))
        seconds = statistics.median(runs)
        return PrefillSpeed(size, size / seconds, seconds, tuple(runs))

    def decode(self, depth: int, generate: int) -> DecodeSpeed:
        *before, first = self._ids(depth + 1)
        self.sequence.truncate(0)
        for done in self.sequence.prefill(before):
            self.progress(f"filling the cache: {done} of {depth} tokens")
        _, *runs = (
            time_decode(self.engine, self.sequence, first, generate, self._stage(f"decode after {depth}", turn))
            for turn in range(self.repeats + 1)
        )
        seconds = statistics.median(elapsed for elapsed, _ in runs)
        cost = min(runs, key=lambda timed: abs(timed[0] - seconds))[1]
        return DecodeSpeed(
            depth=depth,
            tokens=generate,
            tps=generate / seconds,
            runs_s=tuple(elapsed for elapsed, _ in runs),
            dispatches_per_token=cost.dispatches,
            encode_us_per_dispatch=cost.encode_us_per_dispatch,
            encode_us=cost.encode_us,
            finish_us=cost.finish_us,
            submit_us=cost.submit_us,
            wait_us=cost.wait_us,
        )

    def _time_prefill(self, ids: list[int], stage: Report) -> float:
        """Seconds from an empty cache to the first sampled token."""
        self.sequence.truncate(0)
        *_, last = self.sequence.chunks(ids)
        start = time.perf_counter()
        for done in self.sequence.prefill(ids[: len(ids) - len(last)]):
            stage(f"{done} of {len(ids)} tokens")
        stream = self.engine.executor.stream(self.sequence.cache, last, GREEDY)
        try:
            next(stream)
            elapsed = time.perf_counter() - start
        finally:
            stream.close()
            self.sequence.settle([])
        stage("done")
        return elapsed

    def _ids(self, count: int) -> list[int]:
        return self.random.integers(0, self.engine.info.vocab_size, count).tolist()

    def _stage(self, what: str, turn: int) -> Report:
        which = f"run {turn} of {self.repeats}" if turn else "warming up"
        return lambda done: self.progress(f"{what}, {which}: {done}")


def time_decode(engine: Engine, sequence: Sequence, first: int, generate: int, stage: Report) -> tuple[float, StepCost]:
    """Seconds for `generate` greedy tokens after the one that follows `first`; the cache is as before afterwards."""
    stream = engine.executor.stream(sequence.cache, [first], GREEDY)
    return time_steps(engine, stream, [sequence], generate, lambda done: stage(f"{done} of {generate} tokens"))


def time_steps(
    engine: Engine,
    stream: Generator[object, None, None],
    sequences: Ids[Sequence],
    steps: int,
    stage: Callable[[int], None],
) -> tuple[float, StepCost]:
    """Seconds for `steps` results of `stream` after its first; the caches are as before afterwards."""
    try:
        next(stream)
        start = time.perf_counter()
        for done in range(1, steps + 1):
            next(stream)
            stage(done)
        elapsed = time.perf_counter() - start
    finally:
        stream.close()
        for sequence in sequences:
            sequence.settle([])
    return elapsed, engine.step_cost()


def _prefill_cell(speed: PrefillSpeed) -> str:
    return f"{speed.tps:,.1f} tokens/s, first token after {speed.ttft_s:.3f} s"


def _decode_cell(speed: DecodeSpeed) -> str:
    return f"{speed.tps:,.1f} tokens/s, over {speed.tokens} tokens"


def _cost_cell(speed: DecodeSpeed) -> str:
    return (
        f"{speed.dispatches_per_token} dispatches, encoded in {speed.encode_us:,.0f} us "
        f"({speed.encode_us_per_dispatch:.2f} us each), finished in {speed.finish_us:,.0f} us, "
        f"submitted in {speed.submit_us:,.0f} us, "
        f"{speed.wait_us:,.0f} us of waiting"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
