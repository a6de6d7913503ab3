"""Replies that a scripted engine writes at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from inference.events import Event, Finished, Prefill, Timings, Token

if TYPE_CHECKING:
    from tests.app.scripted_engine import Script


def replies_at_once(
    script: Script,
    replies: Sequence[Sequence[str]],
    max_tokens: int | None,
    cancelled: threading.Event,
    timings: Callable[[float, int, int], Timings],
) -> Iterator[tuple[int, Event]]:
    """A token of each in turn, in steps at the script's speed."""
    started, step, alive = time.perf_counter(), 0, list(range(len(replies)))
    for index in alive:
        yield index, Prefill(9, 9, 0)
    while alive:
        if script.error is not None and step == script.error_after:
            raise script.error
        for index in tuple(alive):
            reason = _reason(script, replies[index], step, max_tokens, cancelled)
            if reason:
                alive.remove(index)
                yield index, Finished(reason, timings(started, step, 9))  # type: ignore[arg-type]
            else:
                yield index, Token(ord("x"), replies[index][step], -0.5)
        step += 1
        if script.tokens_per_s:
            time.sleep(max(0.0, started + step / script.tokens_per_s - time.perf_counter()))


def _reason(
    script: Script, pieces: Sequence[str], step: int, max_tokens: int | None, cancelled: threading.Event
) -> str:
    if cancelled.is_set():
        return "cancelled"
    if max_tokens is not None and step >= max_tokens:
        return "length"
    return script.reason if step >= len(pieces) else ""
