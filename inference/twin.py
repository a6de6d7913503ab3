"""Twin lanes: one turn answered under two configurations, token by token in turn, with how far they are apart.

The KL divergence (Kullback and Leibler, On Information and Sufficiency, 1951) is about one text, that of lane 0. While
both lanes write the same, lane 1's own logits are what it makes of that text. From the first token on that differs, a
fork of lane 1's sequence is fed the tokens of lane 0, which costs one more forward pass a token and the fork's KV.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from inference.errors import GlasschatError
from inference.events import Event, Finished, Prefill, Stats, Timings, TokenTimes
from inference.executor import SampleRequest
from inference.loading import no_progress, read_adapters
from inference.reply import STATS_INTERVAL_S, Reply
from inference.sampler import sample
from inference.sequence import Sequence
from inference.twin_events import Divergence, KlDivergence, LaneEvent, NoKlDivergence, TwinEvent, TwinLane

if TYPE_CHECKING:
    from inference.engine import Engine


def twin_events(
    lanes: tuple[TwinLane, TwinLane],
    prompts: tuple[list[int], list[int]],
    max_tokens: int | None,
    cancelled: threading.Event,
) -> Iterator[TwinEvent]:
    """Answer the token ids of `prompts`, one for each lane; ends with a Finished event of either lane.

    Logits come to the host for each token and are sampled there. A seed that is not given is drawn once for both
    lanes, so that lanes without a difference write the same. Engines end with the adapters that they began with.
    Raises what `Reply.read` and adapters raise; DoesNotFit where the fork finds no memory.
    """
    seed = secrets.randbits(63)
    before = [(lane.engine.executor, lane.engine.adapters) for lane in lanes]
    left, right = (
        _Lane(index, lane, prompt, seed, max_tokens, cancelled)
        for index, (lane, prompt) in enumerate(zip(lanes, prompts, strict=True))
    )
    gap = _Gap(left, right)
    try:
        yield from left.read()
        yield from right.read()
        if reason := why_no_kl(left.engine, right.engine):
            yield gap.give_up(reason)
        while stepping := [lane for lane in (left, right) if lane.running]:
            for lane in stepping:
                yield from lane.step()
            if not cancelled.is_set():
                yield from gap.measure(both=len(stepping) == 2)
        yield from left.end()
        yield from right.end()
    finally:
        gap.close()
        left.settle()
        right.settle()
        for executor, adapters in before:
            if executor.adapters is not adapters:
                executor.set_adapters(adapters)


def kl_divergence(p_logits: np.ndarray, q_logits: np.ndarray) -> float:
    """KL(P || Q) in nats of two distributions given by their logits (V,), computed in float64."""
    log_p, log_q = _log_softmax(p_logits), _log_softmax(q_logits)
    p = np.exp(log_p)
    seen = p > 0
    return max(0.0, float(np.sum(p[seen] * (log_p[seen] - log_q[seen]))))


def why_no_kl(one: Engine, other: Engine) -> str:
    """Why the tokens of two models cannot be compared one by one, "" where they can."""
    ours, theirs = one.config.vocab_size, other.config.vocab_size
    if ours != theirs:
        return f"no KL divergence: the vocabularies have {ours:,} and {theirs:,} tokens"
    pairs = zip(one.tokenizer.vocabulary.tokens, other.tokenizer.vocabulary.tokens, strict=False)
    differing = next(((index, *pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if one is other or differing is None:
        return ""
    index, mine, its = differing
    return f"no KL divergence: token {index} of the vocabularies is {mine!r} and {its!r}"


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - float(logits.max())
    return shifted - np.log(np.exp(shifted).sum())


class _Lane:
    """One lane at work. `logits` are those that chose the last token, `chosen`; `next` is what is appended next."""

    def __init__(
        self,
        index: int,
        lane: TwinLane,
        prompt: list[int],
        seed: int,
        max_tokens: int | None,
        cancelled: threading.Event,
    ) -> None:
        engine = self.engine = lane.engine
        self.sequence = lane.sequence
        self.chosen = -1
        self.logits = np.empty(0, np.float32)
        self._index = index
        self._request = SampleRequest(
            lane.sampling, seed if lane.sampling.seed is None else lane.sampling.seed, tuple(prompt)
        )
        self._prompt = prompt
        self._cancelled = cancelled
        self._adapters = (
            engine.adapters
            if lane.loras is None
            else read_adapters(engine.config, lane.loras, no_progress, engine.adapters)
        )
        self._reply = Reply(engine.tokenizer, lane.sampling, max_tokens)
        self._counts = self._request.token_counts(engine.config.vocab_size)
        self._next: Ids[int] = ()
        self._prefill_s = self._decode_s = self._next_stats = 0.0

    @property
    def running(self) -> bool:
        return self._reply.finish is None

    def read(self) -> Iterator[TwinEvent]:
        """Read the prompt."""
        self.use()
        began = time.perf_counter()
        for event in self._reply.read(self.sequence, self._prompt, self._cancelled):
            yield self._tell(event)
        self._next = self._reply.last
        self._prefill_s = time.perf_counter() - began

    def step(self) -> Iterator[TwinEvent]:
        """Choose one more token."""
        self.use()
        request, began = self._request, time.perf_counter()
        first = len(self.sequence) < len(self._prompt)
        if not self._cancelled.is_set():
            self.logits = self.sequence.append(self._next)
        if self._cancelled.is_set():
            self._reply.finish = "cancelled"
            return
        sampled = sample(self.logits, request.sampling, request.seed, len(self.sequence), self._counts)
        took = time.perf_counter() - began
        if first:
            self._prefill_s += took
            yield self._tell(Prefill(self._reply.prefilled, self._reply.prefilled, self._reply.reused))
        else:
            self._decode_s += took
        self.chosen, self._next = sampled.id, (sampled.id,)
        if self._counts is not None:
            self._counts[sampled.id] += 1
        if (token := self._reply.take(sampled)) is not None:
            yield self._tell(replace(token, times=TokenTimes(took)))
        if self.running and len(self.sequence) >= self.sequence.context:
            self._reply.finish = "context"
        if began >= self._next_stats:
            self._next_stats = began + STATS_INTERVAL_S
            yield self._tell(self._stats())

    def use(self) -> None:
        """Make the engine this lane's: with its adapters."""
        executor = self.engine.executor
        if not executor.adapters.same_as(self._adapters):
            executor.set_adapters(self._adapters)

    def end(self) -> Iterator[TwinEvent]:
        """What was held back, the last figures, and why it ended."""
        if (held_back := self._reply.flush()) is not None:
            yield self._tell(held_back)
        yield self._tell(self._stats())
        assert self._reply.finish is not None
        yield self._tell(Finished(self._reply.finish, self._timings()))

    def settle(self) -> None:
        """Leave the sequence as a reply of its own would."""
        held = max(0, len(self.sequence) - len(self._prompt))
        self.sequence.settle((), self._reply.outputs[held:])

    def _tell(self, event: Event) -> LaneEvent:
        return LaneEvent(self._index, event)

    def _timings(self) -> Timings:
        return self._reply.timings(self.engine.info.load_s, self._prefill_s, self._decode_s)

    def _stats(self) -> Stats:
        sequence = self.sequence
        return Stats(self.engine.memory(), sequence.kv_stats(), self._timings(), sequence.kv_map())


class _Gap:
    """How far lane 1 is from lane 0, as long as lane 0 goes on."""

    def __init__(self, left: _Lane, right: _Lane) -> None:
        self._left = left
        self._right = right
        self._follower: Sequence | None = None
        self._over = False
        self._before = -1
        self._position = 0
        self._total = 0.0

    def measure(self, both: bool) -> Iterator[TwinEvent]:
        """What the token that lane 0 has just chosen tells; `both` says that lane 1 has chosen one as well."""
        left, right = self._left, self._right
        if self._over:
            return
        try:
            if self._follower is not None:
                right.use()
                logits = self._follower.append([self._before])
            elif both:
                logits = right.logits
            else:
                yield self.give_up("lane 1 has ended: no KL divergence from here on")
                return
            diverging = self._follower is None and left.chosen != right.chosen
            if diverging:
                yield Divergence(self._position)
            nats = kl_divergence(left.logits, logits)
            self._total += nats
            yield KlDivergence(self._position, nats, self._total / (self._position + 1))
            if diverging and left.running:
                self._follower = right.sequence.fork()
        except GlasschatError as error:
            # Without memory or room for the fork both replies go on all the same.
            yield self.give_up(f"no KL divergence from here on: {error}")
        self._before = left.chosen
        self._position += 1
        if not left.running:
            self._over = True
            self.close()

    def give_up(self, reason: str) -> NoKlDivergence:
        """Measure nothing more."""
        self._over = True
        self.close()
        return NoKlDivergence(reason)

    def close(self) -> None:
        """Free the fork."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
