"""Several replies at once: sequences that join and leave between the steps that decode them together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ids
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from inference.events import Event
from inference.executor import Executor, SampleRequest
from inference.generation import Generation
from inference.sampling import Sampling
from inference.sequence import Sequence
from inference.shared_prefill import Goal, fill, roots
from inference.tokenizer import Tokenizer

Prompt = Sequence | Ids[Mapping[str, Any]] | Ids[int]
"""What a reply follows: what a sequence holds, the messages of a conversation, or token ids."""


@dataclass(frozen=True)
class _Member:
    """A reply under way; `own` tells that its sequence ends with it."""

    index: int
    generation: Generation
    own: bool

    @property
    def sequence(self) -> Sequence:
        return self.generation.sequence

    @property
    def target(self) -> tuple[int, ...]:
        """What the cache holds before the first step in which the reply takes part."""
        return tuple(self.generation.prompt[:-1])

    def numbered(self, events: Iterator[Event]) -> Iterator[tuple[int, Event]]:
        return ((self.index, event) for event in events)

    def release(self) -> None:
        """The reply is over: a sequence that is not the caller's is closed."""
        if self.own:
            self.sequence.close()


class Batch:
    """Replies by number, as made by `Engine.generate_many`. Iterate over it once: (number, event)."""

    def __init__(
        self,
        executor: Executor[Any],
        tokenizer: Tokenizer,
        request: Callable[[Prompt, Sampling, Sequence | None, str], SampleRequest],
        new_sequence: Callable[[], Sequence],
        cancelled: threading.Event,
        load_s: float,
    ) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._request = request
        self._new_sequence = new_sequence
        self._cancelled = cancelled
        self._load_s = load_s
        self._added = 0
        self._waiting: deque[_Member] = deque()
        self._members: list[_Member] = []
        self._stopped: set[int] = set()

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        try:
            while self._members or self._waiting:
                yield from self._join()
                yield from self._leave()
                yield from self._decode()
                yield from self._leave()
        finally:
            for member in (*self._members, *self._waiting):
                member.release()
            self._members = []
            self._waiting.clear()

    def add(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        sequence: Sequence | None = None,
    ) -> int:
        """One reply more, as in `Engine.generate_many`; returns its number. It joins before the next step.

        While the batch is iterated over, call it between two events. Where the most sequences of a step are decoded
        already, it waits until one leaves.
        """
        sampling = sampling or Sampling()
        given = prompt if isinstance(prompt, Sequence) else sequence
        request = self._request(prompt, sampling, given, "")
        target = self._new_sequence() if given is None else given
        target.check_prompt(request.context_ids, sampling)
        present = [member.sequence.cache for member in (*self._members, *self._waiting)]
        # All present go together, so one of them tells whether another may join; but where this cache is there already,
        # it is held against itself, which is refused.
        same = [cache for cache in present if cache is target.cache]
        self._executor.check_batch([*(same or present)[:1], target.cache])
        generation = Generation(
            self._executor, self._tokenizer, target, request, self._cancelled, max_tokens, self._load_s,
            together=len(present) + 1,
        )  # fmt: skip
        self._waiting.append(_Member(self._added, generation, own=given is None))
        self._added += 1
        return self._added - 1

    def stop(self, index: int) -> None:
        """End one reply as if cancelled; the others go on. May be called from any thread."""
        self._stopped.add(index)

    def _join(self) -> Iterator[tuple[int, Event]]:
        """Prefill what waits, as far as there is room."""
        room = self._executor.max_batch - len(self._members)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        donors = [member.sequence for member in (*self._members, *joining)]
        self._members += joining
        goals = [Goal(number, member.target, member.sequence) for number, member in enumerate(joining)]
        with ExitStack() as made:
            begun = roots(goals, donors, self._new_sequence, made)
            for root in begun:
                for goal in root.goals:
                    member, reused = joining[goal.number], root.state.common_prefix(goal.ids)
                    yield from member.numbered(member.generation.begin(reused, root.notice))
            for root in begun:
                for filled, tokens in fill(root, made):
                    for goal in filled:
                        yield joining[goal.number].index, joining[goal.number].generation.progress(tokens)
                    if self._cancelled.is_set():
                        for member in joining:
                            member.generation.stop()
                        return

    def _decode(self) -> Iterator[tuple[int, Event]]:
        """Steps of all members, until one of them has ended or another can join."""
        members = self._members
        if not members:
            return

        def going_on() -> bool:
            room = len(members) < self._executor.max_batch
            return not (self._waiting and room) and not any(member.generation.finish for member in members)

        stream = self._executor.stream_many(
            [member.sequence.cache for member in members],
            [member.generation.last_id for member in members],
            [member.generation.request for member in members],
            going_on,
        )
        try:
            for member in members:
                member.generation.resume()
            for results in stream:
                for member, sampled in zip(members, results, strict=True):
                    self._hear_stop(member)
                    # Of a reply that has ended, what was in flight is dropped.
                    if not member.generation.finish:
                        yield from member.numbered(member.generation.take(sampled))
                for member in members:
                    member.generation.resume()
        finally:
            stream.close()
            for member in members:
                member.generation.settle()
        for member in members:
            if len(member.sequence) >= member.sequence.context:
                member.generation.stop("context")

    def _hear_stop(self, member: _Member) -> None:
        if member.index in self._stopped:
            member.generation.stop()

    def _leave(self) -> Iterator[tuple[int, Event]]:
        """The last events of the replies that have ended, which leave the batch."""
        for member in list(self._members):
            self._hear_stop(member)
            if member.generation.finish:
                self._members.remove(member)
                yield from member.numbered(member.generation.end())
                member.release()
