"""One reply with its figures on one sequence, as a stream of events; by itself, or as one of several (see Batch)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.events import Event, Finished, FinishReason, Notice, Stats, Timings, TokenTimes
from inference.executor import Executor, SampleRequest
from inference.reply import STATS_INTERVAL_S, Reply
from inference.sampling import Sampled
from inference.sequence import Sequence
from inference.tokenizer import Tokenizer


class Generation:
    """A reply to the prompt that `request` counts. `run` makes all of it.

    Whoever samples several together calls instead: `begin` and `progress` while the prompt is read, `resume` when
    sampling begins or goes on, `take` for each token until `finish` is set, `settle` when sampling has stopped, `end`.
    """

    def __init__(
        self,
        executor: Executor[Any],
        tokenizer: Tokenizer,
        sequence: Sequence,
        request: SampleRequest,
        cancelled: threading.Event,
        max_tokens: int | None,
        load_s: float,
        begun: bool = False,
        together: int = 1,
    ) -> None:
        """`begun` tells that the prompt ends within the reply; of `together` replies each sends Stats less often."""
        self.sequence = sequence
        self._executor = executor
        self._request = request
        self._cancelled = cancelled
        self._load_s = load_s
        self._reply = Reply(tokenizer, request.sampling, max_tokens, begun)
        self._stats_interval_s = STATS_INTERVAL_S * together
        self._next_stats = 0.0
        self._sampled = 0
        self._started = time.perf_counter()
        self._first_token_at = 0.0
        self._shown = self._resumed = 0.0

    @property
    def prompt(self) -> list[int]:
        """Its token ids."""
        return list(self._request.context_ids)

    @property
    def finish(self) -> FinishReason | None:
        """Why the reply has ended, None while it has not."""
        return self._reply.finish

    def stop(self, reason: FinishReason = "cancelled") -> None:
        """End the reply, unless it has ended."""
        self._reply.finish = self._reply.finish or reason

    @property
    def request(self) -> SampleRequest:
        """How the next tokens are sampled: penalties count those of the reply too."""
        return replace(self._request, context_ids=(*self._request.context_ids, *self._reply.outputs))

    @property
    def last_id(self) -> int:
        """The last token so far, which the next step appends."""
        return (self._reply.outputs or self.prompt)[-1]

    def run(self) -> Iterator[Event]:
        """The events of the reply. Raises ContextFull where the prompt does not fit."""
        yield from self._reply.read(self.sequence, self.prompt, self._cancelled)
        if self.finish is None:
            yield from self._host_notice()
            stream = self._executor.stream(self.sequence.cache, self._reply.last, self._request)
            try:
                self.resume()
                for sampled in stream:
                    yield from self.take(sampled)
                    if self.finish is not None:
                        break
                    self.resume()
            finally:
                # Closing the stream waits for what is in flight; the cache then forgets what was computed too far.
                stream.close()
                self.settle()
        yield from self.end()

    def begin(self, reused: int, notice: str | None) -> Iterator[Event]:
        """The prompt is about to be read; see Reply.begin."""
        yield from self._reply.begin(self.prompt, reused, notice)
        yield from self._host_notice()

    def progress(self, held: int) -> Event:
        """The first `held` tokens of the prompt are in the cache."""
        return self._reply.progress(held)

    def resume(self) -> None:
        """Sampling begins, or goes on: what has passed since the token before was the caller's."""
        self._resumed = time.perf_counter()
        if not self._sampled:
            self._shown = self._resumed

    def take(self, sampled: Sampled) -> Iterator[Event]:
        """The next token."""
        self._sampled += 1
        now = time.perf_counter()
        if self._sampled == 1:
            self._first_token_at = now
            yield self._reply.progress(self._reply.prompt_tokens)
        if self._cancelled.is_set():
            self.stop()
            return
        token = self._reply.take(sampled)
        if token is None:
            return
        before, self._shown = self._shown, time.perf_counter()
        times = TokenTimes(self._shown - before, self._resumed - before, sampled.spans, self._shown - now)
        yield replace(token, times=times)
        if self.finish is None and now >= self._next_stats:
            self._next_stats = now + self._stats_interval_s
            yield self._stats(self._timings())

    def settle(self) -> None:
        """Make the sequence hold what has been sampled but its last token, and nothing beyond.

        Before the first token it stays as it is.
        """
        ids = self.request.context_ids
        present = len(self.sequence)
        held = self._reply.prompt_tokens + self._sampled - 1 if self._sampled else present
        self.sequence.settle(ids[present:held], ids[held:] if self._sampled else ())

    def end(self) -> Iterator[Event]:
        """The last events: text held back, Stats, Finished."""
        if held_back := self._reply.flush():
            yield held_back
        timings = self._timings()
        yield self._stats(timings)
        yield Finished(self.finish or "context", timings)

    def _host_notice(self) -> Iterator[Event]:
        if self._request.sampling.host_reason is not None:
            yield Notice(f"one token at a time: {self._request.sampling.host_reason}")

    def _timings(self) -> Timings:
        now = time.perf_counter()
        first = self._first_token_at or now
        return self._reply.timings(self._load_s, first - self._started, now - first)

    def _stats(self, timings: Timings) -> Stats:
        return Stats(self._executor.memory(), self.sequence.kv_stats(), timings, self.sequence.kv_map())
