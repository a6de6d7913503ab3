"""The layouts of the KV cache side by side: the report behind `chat bench --kv all`.

Bytes and speed are measured on an engine opened for each layout. Quality is measured on NumPy in f32, where all
layouts run over one copy of the weights: the text goes through each in steps of STEP_TOKENS, so that every step sees
the past as the layout keeps it, quantised or not, as it does while a reply is written.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import cycle, islice
from typing import Any

import numpy as np

from inference.bench import FULL, SOFTWARE, Report, time_decode
from inference.engine import Engine
from inference.errors import DoesNotFit, KernelUnavailable, LayoutUnavailable
from inference.kv.choose import choose_layouts
from inference.kv.factory import NumpyCaches
from inference.loading import DeviceOption

REFERENCE = "contiguous"
TEXT_TOKENS = 1536

STEP_TOKENS = 32
"""Tokens a step of the quality measurement. In steps of one, up to so many tokens more would be in cold tiers."""

OpenEngine = Callable[[str, DeviceOption | None], Engine]
"""Opens the model with a layout, on a device (None for the one that was asked for)."""


@dataclass(frozen=True)
class LayoutQuality:
    """What a layout does to the model's predictions: the mean over the text's tokens of the Kullback-Leibler
    divergence from those over the reference, in nats, and the perplexity of the text with its difference."""

    kl: float
    perplexity: float
    perplexity_difference: float


@dataclass(frozen=True)
class LayoutCost:
    """Bytes of keys and values a token, in use and set aside, and decoded tokens a second (median of `runs_s`)."""

    used_bytes_per_token: float
    allocated_bytes_per_token: float
    decode_tps: float
    runs_s: tuple[float, ...]


@dataclass(frozen=True)
class LayoutResult:
    """A layout's figures; where it cannot be used, `unavailable` says why and there are none.

    `by_layer` tells the layouts of its layers where they differ.
    """

    layout: str
    by_layer: str = ""
    quality: LayoutQuality | None = None
    cost: LayoutCost | None = None
    unavailable: str = ""


@dataclass(frozen=True)
class LayoutReport:
    """The comparison. Costs are after `depth` tokens, over `generated` tokens; quality is over `text_tokens`."""

    model: str
    device: str
    adapter: str
    dtype: str
    text_tokens: int
    step_tokens: int
    depth: int
    generated: int
    layouts: tuple[LayoutResult, ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """A table for people, its first row the heads."""
        head = ("LAYOUT", "BYTES/TOKEN", "SET ASIDE", "KL", "PERPLEXITY", "CHANGE", "TOKENS/S", "NOTE")
        return (head, *map(_row, self.layouts))

    @property
    def legend(self) -> tuple[str, ...]:
        """What the figures are."""
        return (
            f"{self.model} on {self.adapter}, {self.dtype}",
            f"bytes of keys and values a token, and tokens/s over {self.generated} tokens, after {self.depth:,} tokens",
            f"KL divergence from contiguous in nats a token, perplexity and its change: NumPy, f32, "
            f"{self.text_tokens:,} tokens in steps of {self.step_tokens}",
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def run(
    open_engine: OpenEngine,
    layouts: Sequence[str],
    depth: int | None = None,
    generate: int | None = None,
    progress: Report = lambda _: None,
) -> LayoutReport:
    """Compare `layouts` with the contiguous one.

    Engines are opened one after another, so that two never share the memory. `depth` is the number of tokens in the
    cache where bytes and speed are measured, by default as many as the quality is measured over. A layout that the
    model or the device cannot use is in the report with the reason. `progress` may raise Cancelled. Raises ContextFull.
    """
    with _opened(open_engine, REFERENCE, "cpu") as engine:
        ids = text_ids(engine)[: min(TEXT_TOKENS, engine.info.context)]
        room = engine.info.context - 1 - (FULL.generate if generate is None else generate)
        depth = max(0, min(len(ids), room)) if depth is None else depth
        results = {name: _usable(engine, name) for name in layouts}
        usable = [name for name, result in results.items() if not result.unavailable]
        quality = measure_quality(engine, usable, ids, progress)
    info, generated = None, 0
    for name in usable:
        try:
            with _opened(open_engine, name, None) as engine:
                info = engine.info
                usual = SOFTWARE if info.software else FULL
                generated = usual.generate if generate is None else generate
                cost = measure_cost(engine, name, list(islice(cycle(ids), depth + 1)), generated, progress)
            results[name] = LayoutResult(name, results[name].by_layer, quality[name], cost)
        except (DoesNotFit, KernelUnavailable) as error:
            results[name] = LayoutResult(name, unavailable=str(error))
    if info is None:
        raise LayoutUnavailable("; ".join(result.unavailable for result in results.values()))
    return LayoutReport(
        info.model,
        info.device,
        info.adapter,
        info.dtype,
        len(ids),
        STEP_TOKENS,
        depth,
        generated,
        tuple(results.values()),
    )


def text_ids(engine: Engine) -> list[int]:
    """The fixed text as the model's tokens."""
    text = resources.files("assets").joinpath("bench_text.txt").read_text(encoding="utf-8")
    return engine.tokenizer.encode(text, add_special=True)


def measure_quality(
    engine: Engine, layouts: Sequence[str], ids: Sequence[int], progress: Report
) -> Mapping[str, LayoutQuality]:
    """The quality of each layout over `ids`, by an engine on the CPU."""
    config, forward = engine.config, engine.executor.forward
    caches = {
        name: NumpyCaches(config, choose_layouts(config, name), STEP_TOKENS).new(engine.info.context)
        for name in dict.fromkeys((REFERENCE, *layouts))
    }
    divergence = dict.fromkeys(caches, 0.0)
    surprise = dict.fromkeys(caches, 0.0)
    for start in range(0, len(ids), STEP_TOKENS):
        step = list(ids[start : start + STEP_TOKENS])
        following = np.asarray(ids[start + 1 : start + STEP_TOKENS + 1], np.int64)
        reference: np.ndarray | None = None
        for name, cache in caches.items():
            logits = forward(cache, step, "all")
            assert logits is not None
            found = _log_probabilities(logits)
            if reference is None:
                reference = found
            divergence[name] += float(np.sum(np.exp(reference) * (reference - found)))
            surprise[name] -= float(found[np.arange(len(following)), following].sum())
        progress(f"quality of {len(layouts)} layouts: {start + len(step)} of {len(ids)} tokens")
    for cache in caches.values():
        cache.close()
    perplexity = {name: math.exp(total / max(1, len(ids) - 1)) for name, total in surprise.items()}
    return {
        name: LayoutQuality(divergence[name] / len(ids), perplexity[name], perplexity[name] - perplexity[REFERENCE])
        for name in layouts
    }


def measure_cost(engine: Engine, name: str, ids: Sequence[int], generate: int, progress: Report) -> LayoutCost:
    """Bytes after `ids`, and the speed of `generate` greedy tokens that follow them."""
    sequence = engine.sequence()
    try:
        sequence.check_room(len(ids) + generate)
        *before, first = ids
        for done in sequence.prefill(before):
            progress(f"{name}: {done} of {len(before)} tokens in the cache")
        # Tiers move when a step begins: bytes are those of a decode step.
        sequence.append([first])
        stats = sequence.kv_stats()
        sequence.truncate(len(before))
        repeats = (SOFTWARE if engine.info.software else FULL).repeats

        def stage(done: str) -> None:
            progress(f"{name}: {done}")

        # The first run compiles what the others use.
        _, *runs = (time_decode(engine, sequence, first, generate, stage)[0] for _ in range(repeats + 1))
    finally:
        sequence.close()
    return LayoutCost(
        used_bytes_per_token=stats.used_bytes / stats.tokens,
        allocated_bytes_per_token=stats.allocated_bytes / stats.tokens,
        decode_tps=generate / statistics.median(runs),
        runs_s=tuple(runs),
    )


def _usable(engine: Engine, name: str) -> LayoutResult:
    try:
        groups = choose_layouts(engine.config, name)
    except LayoutUnavailable as error:
        return LayoutResult(name, unavailable=str(error))
    mixed = ", ".join(f"{len(group.layers)} {group.layout}" for group in groups) if len(groups) > 1 else ""
    return LayoutResult(name, mixed)


@contextmanager
def _opened(open_engine: OpenEngine, layout: str, device: DeviceOption | None) -> Iterator[Engine]:
    engine = open_engine(layout, device)
    try:
        yield engine
    finally:
        engine.close()


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    """float64 (T, V)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _row(result: LayoutResult) -> tuple[str, ...]:
    if result.quality is None or result.cost is None:
        return (result.layout, *("-",) * 6, result.unavailable)
    quality, cost = result.quality, result.cost
    return (
        result.layout,
        f"{cost.used_bytes_per_token:,.0f}",
        f"{cost.allocated_bytes_per_token:,.0f}",
        f"{quality.kl:.1e}" if quality.kl else "0",
        f"{quality.perplexity:.3f}",
        f"{quality.perplexity_difference:+.4f}",
        f"{cost.decode_tps:,.1f}",
        result.by_layer and f"layers: {result.by_layer}",
    )
