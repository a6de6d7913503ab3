"""Replies that a scripted engine writes at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.events import Event, Finished, Prefill, Timings, Token

if TYPE_CHECKING:
    from tests.app.scripted_engine import Script


@dataclass(frozen=True)
class RepliesAtOnce:
    """A token of each in turn, in steps at the script's speed; one can be stopped by itself."""

    script: Script
    replies: Sequence[Sequence[str]]
    max_tokens: int | None
    cancelled: threading.Event
    timings: Callable[[float, int, int], Timings]
    stopped: set[int] = field(default_factory=set)

    def stop(self, index: int) -> None:
        self.stopped.add(index)

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        script, started, step, alive = self.script, time.perf_counter(), 0, list(range(len(self.replies)))
        for index in alive:
            yield index, Prefill(9, 9, 0)
        while alive:
            if script.error is not None and step == script.error_after:
                raise script.error
            for index in tuple(alive):
                if reason := self._reason(index, step):
                    alive.remove(index)
                    yield index, Finished(reason, self.timings(started, step, 9))  # type: ignore[arg-type]
                else:
                    yield index, Token(ord("x"), self.replies[index][step], -0.5)
            step += 1
            if script.tokens_per_s:
                time.sleep(max(0.0, started + step / script.tokens_per_s - time.perf_counter()))

    def _reason(self, index: int, step: int) -> str:
        if self.cancelled.is_set() or index in self.stopped:
            return "cancelled"
        if self.max_tokens is not None and step >= self.max_tokens:
            return "length"
        return self.script.reason if step >= len(self.replies[index]) else ""
