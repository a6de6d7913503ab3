"""One reply on one sequence: prefill, sampling, stops, text, figures, as a stream of events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.events import Event, Finished, Notice, Prefill, Stats, Timings, TokenTimes
from inference.executor import Executor, SampleRequest
from inference.reply import Reply
from inference.sequence import Sequence
from inference.tokenizer import Tokenizer

STATS_INTERVAL_S = 0.1


class Generation:
    """A reply whose tokens come from the executor's stream. `run` is used once."""

    def __init__(
        self,
        executor: Executor[Any],
        tokenizer: Tokenizer,
        sequence: Sequence,
        request: SampleRequest,
        cancelled: threading.Event,
        begun: bool = False,
    ) -> None:
        """`begun` tells that the ids to be given end within the reply."""
        self._executor = executor
        self._tokenizer = tokenizer
        self._sequence = sequence
        self._request = request
        self._cancelled = cancelled
        self._begun = begun
        self._started = 0.0
        self._first_token_at = 0.0
        self._load_s = 0.0

    def run(self, ids: list[int], max_tokens: int | None, load_s: float) -> Iterator[Event]:
        """The events of a reply to `ids`. Raises ContextFull where they do not fit."""
        self._started = time.perf_counter()
        self._load_s = load_s
        reply = Reply(self._tokenizer, self._request.sampling, max_tokens, self._begun)
        yield from reply.read(self._sequence, ids, self._cancelled)
        if reply.finish is None:
            if self._request.sampling.host_reason is not None:
                yield Notice(f"one token at a time: {self._request.sampling.host_reason}")
            yield from self._decode(reply)
        if held_back := reply.flush():
            yield held_back
        timings = self._timings(reply)
        yield self._stats(timings)
        yield Finished(reply.finish or "context", timings)

    def _decode(self, reply: Reply) -> Iterator[Event]:
        """Sample until something ends the reply."""
        stream = self._executor.stream(self._sequence.cache, reply.last, self._request)
        next_stats = 0.0
        sampled_tokens = 0
        shown = resumed = time.perf_counter()
        try:
            for sampled in stream:
                sampled_tokens += 1
                now = time.perf_counter()
                if not reply.outputs:
                    self._first_token_at = now
                    yield Prefill(reply.prefilled, reply.prefilled, reply.reused)
                if self._cancelled.is_set():
                    reply.finish = "cancelled"
                    break
                token = reply.take(sampled)
                if token is None:
                    break
                before, shown = shown, time.perf_counter()
                times = TokenTimes(shown - before, resumed - before, sampled.spans, shown - now)
                yield replace(token, times=times)
                if reply.finish is not None:
                    break
                if now >= next_stats:
                    next_stats = now + STATS_INTERVAL_S
                    yield self._stats(self._timings(reply))
                resumed = time.perf_counter()
        finally:
            # Closing the stream waits for what is in flight; the cache then forgets what was computed too far.
            stream.close()
            # All sampled tokens but the last one are in it.
            held = max(sampled_tokens - 1, 0)
            self._sequence.settle(reply.last + reply.outputs[:held] if sampled_tokens else [], reply.outputs[held:])

    def _timings(self, reply: Reply) -> Timings:
        now = time.perf_counter()
        first = self._first_token_at or now
        return reply.timings(self._load_s, first - self._started, now - first)

    def _stats(self, timings: Timings) -> Stats:
        return Stats(self._executor.memory(), self._sequence.kv_stats(), timings, self._sequence.kv_map())
