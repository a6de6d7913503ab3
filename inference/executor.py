"""What the engine asks of an executor: the same plan, run on NumPy or on WebGPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from inference.errors import BatchRefused
from inference.events import MemoryStats, StepSpans
from inference.kv.layout import KvCache, LayerGroup, describe_groups
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig
from inference.plan.explain import PlanRow
from inference.plan.ops import Device, Logits
from inference.sampler import sample
from inference.sampling import Sampled, Sampling

Cache = TypeVar("Cache", bound=KvCache)


@dataclass(frozen=True)
class SampleRequest:
    """Sampling with its seed settled; `context_ids` are the tokens that penalties count, the prompt's included."""

    sampling: Sampling
    seed: int
    context_ids: tuple[int, ...]

    def token_counts(self, vocab_size: int) -> np.ndarray | None:
        """How often each token stands in the context, int64 (V,); None where no penalty asks for it."""
        if not self.sampling.has_penalties:
            return None
        return np.bincount(np.asarray(self.context_ids, np.int64), minlength=vocab_size)


@dataclass(frozen=True)
class StepCost:
    """Host cost of one decode step, averaged over a reply. Microseconds; zero where there is no such stage."""

    dispatches: int = 0
    encode_us: float = 0.0
    finish_us: float = 0.0
    submit_us: float = 0.0
    wait_us: float = 0.0

    @property
    def encode_us_per_dispatch(self) -> float:
        return self.encode_us / self.dispatches if self.dispatches else 0.0


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step on the device: `ops` by operation of the plan, each timed on its own, and `whole` at once."""

    ops: tuple[float, ...]
    whole: float


class Executor(Protocol[Cache]):
    """Runs plans of one model on one device. Belongs to one thread."""

    device: Device
    adapter: str
    config: ModelConfig
    chunk: int
    """Most tokens one step takes."""
    logits_chunk: int
    """Most tokens one step takes whose logits are all wanted."""
    max_batch: int
    """Most sequences that one step takes a token of."""

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Bring the weights to the device; `progress` hears (weights done, weights in all). Raises DoesNotFit."""

    @property
    def adapters(self) -> AdapterSet:
        """The LoRA adapters in use; see `set_adapters`."""

    def set_adapters(self, adapters: AdapterSet) -> None:
        """Use these adapters from the next step on. Caches filled before hold what other adapters made.

        Raises DoesNotFit, and then goes on with those before.
        """

    def new_cache(self, context: int, groups: Sequence[LayerGroup] | None = None) -> Cache:
        """An empty KV cache for up to `context` tokens, with other layouts than usual where `groups` says so."""

    def forward(self, cache: Cache, ids: Sequence[int], logits: Logits) -> np.ndarray | None:
        """Append up to `chunk` tokens; returns float32 logits (V,) for "last", (T, V) for "all", None for "none"."""

    def stream(self, cache: Cache, ids: Sequence[int], request: SampleRequest) -> Generator[Sampled, None, None]:
        """Append up to `chunk` tokens, then sample one token after another, each fed back.

        When the caller stops iterating, the cache holds at least every token but the last one yielded; the
        caller truncates what was computed beyond. Ends by itself when the cache has reached its context.
        """

    def check_batch(self, caches: Sequence[Cache]) -> None:
        """Raises BatchRefused where these caches cannot take a token each in one step."""

    def forward_many(self, caches: Sequence[Cache], ids: Sequence[int]) -> np.ndarray:
        """Append ids[n] to caches[n] for each n, in one step; returns their float32 logits (N, V).

        Raises BatchRefused.
        """

    def stream_many(
        self,
        caches: Sequence[Cache],
        ids: Sequence[int],
        requests: Sequence[SampleRequest],
        going_on: Callable[[], bool],
    ) -> Generator[tuple[Sampled, ...], None, None]:
        """Append ids[n] to caches[n], then sample a token for each in every step, fed back; see `stream`.

        No step begins once `going_on` gives False: the results of those that have begun still come. Ends when any
        cache has reached its context. Raises BatchRefused.
        """

    def time_step(self, cache: Cache, ids: Sequence[int]) -> StepTimes:
        """What a step takes that appends up to `chunk` tokens and samples; `cache` ends as it was.

        Raises DeviceUnavailable where the device has no clock for it.
        """

    def plan_rows(self, phase: Literal["decode", "prefill"]) -> list[PlanRow]:
        """The explained plan of a decode step or of a prefill chunk with sampling."""

    def memory(self) -> MemoryStats:
        """Bytes held now and at the peak."""

    def step_cost(self) -> StepCost:
        """Cost of the decode steps of the last stream."""

    def close(self) -> None:
        """Free everything. The executor cannot be used afterwards."""


def check_batch(caches: Sequence[KvCache[Any]], max_batch: int) -> None:
    """Raises BatchRefused where these caches cannot take a token each in one step."""
    if not 1 <= len(caches) <= max_batch:
        raise BatchRefused(
            f"a batch of {len(caches)} sequences: one step takes 1 to {max_batch}; decode fewer together"
        )
    if len(set(map(id, caches))) < len(caches):
        raise BatchRefused("a sequence stands in the batch twice; fork it")
    first, *others = ([store.group for store in cache.stores] for cache in caches)
    for index, other in enumerate(others, 1):
        if other != first:
            raise BatchRefused(
                f"the sequences of a batch need the same KV layouts: the first has {describe_groups(first)}, number "
                f"{index + 1} has {describe_groups(other)}; open one engine for all of them"
            )


def host_stream(
    executor: Executor[Cache], cache: Cache, ids: Sequence[int], request: SampleRequest
) -> Generator[Sampled, None, None]:
    """`Executor.stream` with the sampling done in NumPy: one token at a time, logits read back for each."""

    def forward(tokens: Sequence[int]) -> np.ndarray:
        logits = executor.forward(cache, tokens, "last")
        assert logits is not None
        return logits[None]

    for (sampled,) in _host_steps(forward, [cache], ids, [request], executor.config.vocab_size):
        yield sampled


def host_stream_many(
    executor: Executor[Cache],
    caches: Sequence[Cache],
    ids: Sequence[int],
    requests: Sequence[SampleRequest],
    going_on: Callable[[], bool],
) -> Generator[tuple[Sampled, ...], None, None]:
    """`Executor.stream_many` with the sampling done in NumPy: one step at a time, logits read back for each."""
    executor.check_batch(caches)
    steps = _host_steps(
        lambda tokens: executor.forward_many(caches, tokens), caches, ids, requests, executor.config.vocab_size
    )
    while going_on() and (sampled := next(steps, None)) is not None:
        yield sampled


def _host_steps(
    forward: Callable[[Sequence[int]], np.ndarray],
    caches: Sequence[KvCache[Any]],
    ids: Sequence[int],
    requests: Sequence[SampleRequest],
    vocab_size: int,
) -> Iterator[tuple[Sampled, ...]]:
    """Append `ids` and sample from the logits (N, V) that `forward` gives, again and again with what was sampled.

    Ends when a cache has reached its context.
    """
    counts = [request.token_counts(vocab_size) for request in requests]
    while True:
        began = time.perf_counter()
        logits = forward(ids)
        computed = time.perf_counter()
        chosen = [
            sample(row, request.sampling, request.seed, cache.length, count)
            for row, request, cache, count in zip(logits, requests, caches, counts, strict=True)
        ]
        spans = StepSpans(wait_s=computed - began, sample_s=time.perf_counter() - computed)
        yield tuple(replace(each, spans=spans) for each in chosen)
        if any(cache.length >= cache.context for cache in caches):
            return
        ids = [each.id for each in chosen]
        for token, count in zip(ids, counts, strict=True):
            if count is not None:
                count[token] += 1
