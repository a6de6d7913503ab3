"""Steps on WebGPU that take a token of each of several sequences: one dispatch an operation, however many they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from inference.errors import BatchRefused
from inference.executor import SampleRequest, check_batch
from inference.gpu.batch_tables import BatchTables, sharing_stores
from inference.gpu.buffers import BufferPool
from inference.gpu.encoder import PassEncoder
from inference.gpu.programs import GpuCache, Programs
from inference.gpu.queue import StepQueue, run_once
from inference.gpu.transfer import read_tensor
from inference.kernels.dispatch import Binding
from inference.kernels.sample import RESULT_WORDS, pack_settings, unpack_results
from inference.kv.page_pool import PAGE_TOKENS
from inference.sampling import Sampled

AHEAD = PAGE_TOKENS
"""Tokens that each sequence gets room for at a time: growing waits for what is being encoded, and writes all tables."""


class BatchSteps:
    """The batched steps of a WebGPU executor. Up to `max_batch` sequences take part in one."""

    def __init__(
        self, device: Any, pool: BufferPool, encoder: PassEncoder, programs: Programs, queue: StepQueue, max_batch: int
    ) -> None:
        self._device = device
        self._pool = pool
        self._encoder = encoder
        self._programs = programs
        self._queue = queue
        self._max_batch = max_batch
        self._tables: dict[tuple[int, ...], BatchTables] = {}

    def check(self, caches: Sequence[GpuCache]) -> None:
        """See Executor.check_batch. Layouts in which each sequence has buffers of its own are refused."""
        check_batch(caches, self._max_batch)
        first, *others = map(_kind, caches)
        for index, other in enumerate(others, 1):
            if other != first:
                raise BatchRefused(
                    f"the sequences of a batch need one engine and one context: number {index + 1} has others than the "
                    "first; take all from one engine"
                )

    def forward(self, caches: Sequence[GpuCache], ids: Sequence[int]) -> np.ndarray:
        """See Executor.forward_many."""
        tables = self._begin(caches, ids, ahead=1)
        program, prepared = self._program(tables, caches, sampled=False)
        run_once(self._device, self._encoder, prepared)
        _advance(caches)
        scratch = self._programs.batch_scratch(len(caches), sampled=False)
        return read_tensor(self._device, scratch, program.plan.ops[-1].output, len(caches))

    def stream(
        self,
        caches: Sequence[GpuCache],
        ids: Sequence[int],
        requests: Sequence[SampleRequest],
        going_on: Callable[[], bool],
    ) -> Generator[tuple[Sampled, ...], None, None]:
        """See Executor.stream_many."""
        began = time.perf_counter()
        tables = self._begin(caches, ids, AHEAD)
        self._write_requests(requests)
        self._queue.begin_stream()

        def more() -> bool:
            return going_on() and all(cache.length < cache.context for cache in caches)

        def submit() -> None:
            if any(cache.missing(cache.length + 1) for cache in caches):
                # Growing may copy, so the steps before it must be with the device.
                self._queue.wait_submitted()
                self._ensure(tables, caches, AHEAD)
            self._queue.submit(self._program(tables, caches, sampled=True)[1], measured=True)
            _advance(caches)

        with closing(self._queue.results(began, more, submit)) as steps:
            for words, spans in steps:
                yield unpack_results(words.reshape(-1, RESULT_WORDS)[: len(caches)], spans)

    def _begin(self, caches: Sequence[GpuCache], ids: Sequence[int], ahead: int) -> BatchTables:
        """Set positions and tokens of the first step, with nothing in flight: a step's end sets the next one's."""
        self.check(caches)
        key = _kind(caches[0])
        if key not in self._tables:
            self._tables[key] = BatchTables(self._device, self._pool, caches[0], self._max_batch)
        tables = self._tables[key]
        self._ensure(tables, caches, ahead)
        write, shared = self._device.queue.write_buffer, self._programs.shared
        state = [0, len(caches), *(cache.length for cache in caches)]
        write(shared[Binding("state")], 0, np.array(state, np.uint32))
        write(shared[Binding("tokens")], 0, np.asarray(ids, np.uint32))
        return tables

    def _ensure(self, tables: BatchTables, caches: Sequence[GpuCache], ahead: int) -> None:
        for cache in caches:
            cache.ensure(max(cache.length + 1, min(cache.length + ahead, cache.context)))
        tables.fill(caches)

    def _program(self, tables: BatchTables, caches: Sequence[GpuCache], sampled: bool) -> Any:
        longest = max(cache.length for cache in caches)
        return self._programs.batch_program(tables, len(caches), longest, sampled)

    def _write_requests(self, requests: Sequence[SampleRequest]) -> None:
        write = self._device.queue.write_buffer
        settings = [pack_settings(request.sampling, request.seed) for request in requests]
        write(self._programs.shared[Binding("sampling")], 0, np.concatenate(settings))
        counts = self._programs.batch_scratch(len(requests), sampled=True)[Binding("counts")]
        size = self._programs.config.vocab_size
        for row, request in enumerate(requests):
            if (seen := request.token_counts(size)) is not None:
                write(counts, row * size * 4, seen.astype(np.uint32))


def _kind(cache: GpuCache) -> tuple[int, ...]:
    """What the caches of a batch have in common."""
    return (cache.context, *(id(store.shared) for store in sharing_stores(cache)))


def _advance(caches: Sequence[GpuCache]) -> None:
    for cache in caches:
        cache.length += 1
