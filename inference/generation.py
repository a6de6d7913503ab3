"""One reply: prefill, sampling, stops, text, figures, as a stream of events."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

from inference.events import (
    Alternative,
    Event,
    Finished,
    FinishReason,
    Notice,
    Prefill,
    Prompted,
    Stats,
    Timings,
    Token,
    TokenTimes,
)
from inference.executor import Executor, SampleRequest
from inference.sampling import Sampled
from inference.sequence import Sequence
from inference.stops import StopStrings
from inference.tokenizer import StreamDecoder, Tokenizer

STATS_INTERVAL_S = 0.1


class Generation:
    """The state of one reply. `run` is used once."""

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
        self._decoder = StreamDecoder(tokenizer, begun)
        self._stops = StopStrings(request.sampling.stop)
        self._outputs: list[int] = []
        self._stopped_by_string = False
        self._prompt_tokens = 0
        self._reused = 0
        self._started = 0.0
        self._first_token_at = 0.0
        self._load_s = 0.0

    def run(self, ids: list[int], max_tokens: int | None, load_s: float) -> Iterator[Event]:
        """The events of a reply to `ids`. Raises ContextFull where they do not fit."""
        sequence = self._sequence
        sequence.check_ids([*ids, *self._request.sampling.logit_bias])
        sequence.check_room(len(ids))
        self._started = time.perf_counter()
        self._load_s = load_s
        self._prompt_tokens = len(ids)
        # The last token is always computed anew: its logits choose the first one of the reply.
        wanted = min(sequence.common_prefix(ids), len(ids) - 1)
        reason = "the adapters have changed" if sequence.stale else "the ring no longer holds what they saw"
        self._reused = sequence.rewind(wanted)
        if self._reused < wanted:
            yield Notice(f"{wanted - self._reused} tokens are computed anew: {reason}")
        new = ids[self._reused :]
        *before, last = sequence.chunks(new)
        if self._request.sampling.host_reason is not None:
            yield Notice(f"one token at a time: {self._request.sampling.host_reason}")
        yield Prefill(0, len(new), self._reused)
        yield Prompted(tuple(ids), self._reused)
        for done in sequence.prefill(new[: sum(map(len, before))]):
            yield Prefill(done, len(new), self._reused)
            if self._cancelled.is_set():
                break
        finish: FinishReason = "cancelled"
        if not self._cancelled.is_set() and max_tokens != 0:
            finish = yield from self._decode(last, max_tokens)
        elif max_tokens == 0:
            finish = "length"
        if held_back := self._flush():
            yield Token(-1, held_back, 0.0)
        timings = self._timings()
        yield self._stats(timings)
        yield Finished(finish, timings)

    def _decode(self, last: list[int], max_tokens: int | None) -> Generator[Event, None, FinishReason]:
        """Sample until something ends the reply; the generator's value is the reason."""
        stream = self._executor.stream(self._sequence.cache, last, self._request)
        reason: FinishReason = "context"
        next_stats = 0.0
        sampled_tokens = 0
        shown = resumed = time.perf_counter()
        try:
            for sampled in stream:
                sampled_tokens += 1
                now = time.perf_counter()
                if not self._outputs:
                    self._first_token_at = now
                    yield Prefill(self._prompt_tokens - self._reused, self._prompt_tokens - self._reused, self._reused)
                if self._cancelled.is_set():
                    reason = "cancelled"
                    break
                if sampled.id in self._tokenizer.stop_ids:
                    reason = "stop"
                    break
                self._outputs.append(sampled.id)
                release = self._stops.push(self._decoder.push(sampled.id))
                alternatives = self._alternatives(sampled)
                before, shown = shown, time.perf_counter()
                times = TokenTimes(shown - before, resumed - before, sampled.spans, shown - now)
                yield Token(sampled.id, release.text, sampled.logprob, alternatives, times)
                if release.stopped:
                    self._stopped_by_string = True
                    reason = "stop"
                    break
                if max_tokens is not None and len(self._outputs) >= max_tokens:
                    reason = "length"
                    break
                if now >= next_stats:
                    next_stats = now + STATS_INTERVAL_S
                    yield self._stats(self._timings())
                resumed = time.perf_counter()
        finally:
            # Closing the stream waits for what is in flight; the cache then forgets what was computed too far.
            stream.close()
            # All sampled tokens but the last one are in it.
            held = max(sampled_tokens - 1, 0)
            self._sequence.settle(last + self._outputs[:held] if sampled_tokens else [], self._outputs[held:])
        return reason

    def _flush(self) -> str:
        """Text held back for UTF-8 or a stop string that did not come; nothing after a stop string that did."""
        if self._stopped_by_string:
            return ""
        release = self._stops.push(self._decoder.flush())
        return release.text + self._stops.flush()

    def _alternatives(self, sampled: Sampled) -> tuple[Alternative, ...]:
        pairs = zip(sampled.top_ids, sampled.top_logprobs, strict=True)
        return tuple(Alternative(token, self._tokenizer.decode([token]), logprob) for token, logprob in pairs)

    def _timings(self) -> Timings:
        now = time.perf_counter()
        outputs = len(self._outputs)
        first = self._first_token_at or now
        prefill_s = first - self._started
        decode_s = now - first if self._first_token_at else 0.0
        prefilled = self._prompt_tokens - self._reused
        return Timings(
            load_s=self._load_s,
            prefill_s=prefill_s,
            prefill_tps=prefilled / prefill_s if prefill_s > 0 else 0.0,
            decode_s=decode_s,
            # The first token comes with the prefill; the others are what decoding took its time for.
            decode_tps=(outputs - 1) / decode_s if outputs > 1 and decode_s > 0 else 0.0,
            ttft_s=first - self._started if self._first_token_at else 0.0,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused,
            output_tokens=outputs,
        )

    def _stats(self, timings: Timings) -> Stats:
        return Stats(self._executor.memory(), self._sequence.kv_stats(), timings, self._sequence.kv_map())
