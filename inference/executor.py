"""What the engine asks of an executor: the same plan, run on NumPy or on WebGPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np

from inference.events import MemoryStats, StepSpans
from inference.kv.layout import KvCache, LayerGroup
from inference.lora.adapter_set import AdapterSet
from inference.models.config import ModelConfig
from inference.plan.explain import PlanRow
from inference.plan.ops import Logits
from inference.sampler import sample
from inference.sampling import Sampled, Sampling

Cache = TypeVar("Cache", bound=KvCache)


@dataclass(frozen=True)
class SampleRequest:
    """Sampling with its seed settled; `context_ids` are the tokens that penalties count, the prompt's included."""

    sampling: Sampling
    seed: int
    context_ids: tuple[int, ...]


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

    device: Literal["webgpu", "cpu"]
    adapter: str
    config: ModelConfig
    chunk: int
    """Most tokens one step takes."""
    logits_chunk: int
    """Most tokens one step takes whose logits are all wanted."""

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


def host_stream(
    executor: Executor[Cache], cache: Cache, ids: Sequence[int], request: SampleRequest, vocab_size: int
) -> Generator[Sampled, None, None]:
    """`Executor.stream` with the sampling done in NumPy: one token at a time, logits read back for each."""
    counts = None
    if request.sampling.has_penalties:
        counts = np.bincount(np.asarray(request.context_ids, np.int64), minlength=vocab_size)
    while True:
        began = time.perf_counter()
        logits = executor.forward(cache, ids, "last")
        assert logits is not None
        computed = time.perf_counter()
        chosen = sample(logits, request.sampling, request.seed, cache.length, counts)
        spans = StepSpans(wait_s=computed - began, sample_s=time.perf_counter() - computed)
        yield replace(chosen, spans=spans)
        if cache.length >= cache.context:
            return
        if counts is not None:
            counts[chosen.id] += 1
        ids = [chosen.id]
