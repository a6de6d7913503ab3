"""Twin lanes of scripted engines: a token of each in turn, and made-up figures of how far they are apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from inference.events import Finished, Prefill, Stats, Timings, Token
from inference.twin_events import Divergence, KlDivergence, LaneEvent, NoKlDivergence, TwinEvent, TwinLane

if TYPE_CHECKING:
    from tests.app.scripted_engine import Script


def twin_replies(
    script: Script,
    lanes: Sequence[TwinLane],
    max_tokens: int | None,
    cancelled: threading.Event,
    timings: Callable[[float, int, int], Timings],
) -> Iterator[TwinEvent]:
    """The first lane writes `script.pieces`, the second those of its own engine, or else `script.twin`."""
    other = lanes[1].engine.script  # type: ignore[attr-defined]
    pieces = script.pieces, other.pieces if other is not script else script.twin or script.pieces
    started, mean, running, parted = time.perf_counter(), 0.0, [0, 1], False
    for lane in running:
        yield LaneEvent(lane, Prefill(9, 9, 0))
    if other.model != script.model:
        yield NoKlDivergence("no KL divergence: the vocabularies have 1,000 and 1,200 tokens")
    for step in count():
        if not running:
            return
        if script.error is not None and step == script.error_after:
            raise script.error
        for lane in tuple(running):
            reason = _reason(pieces[lane], step, max_tokens, cancelled)
            sequence = lanes[lane].sequence
            if not reason:
                sequence.tokens += 1  # type: ignore[attr-defined]
                yield LaneEvent(lane, Token(ord("x"), pieces[lane][step], -0.5))
                continue
            running.remove(lane)
            figures, memory = timings(started, step, 9), lanes[lane].engine.memory()
            yield LaneEvent(lane, Stats(memory, sequence.kv_stats(), figures))
            yield LaneEvent(lane, Finished(reason, figures))  # type: ignore[arg-type]
        if other.model == script.model and (0 in running or (not parted and running)):
            if not parted and pieces[0][: step + 1] != pieces[1][: step + 1]:
                parted = True
                yield Divergence(step)
            nats = 0.0 if not parted and other is script else 0.004 * (step % 7)
            mean += (nats - mean) / (step + 1)
            yield KlDivergence(step, nats, mean)
        if script.tokens_per_s:
            time.sleep(max(0.0, started + (step + 1) / script.tokens_per_s - time.perf_counter()))


def _reason(pieces: Sequence[str], step: int, max_tokens: int | None, cancelled: threading.Event) -> str:
    if cancelled.is_set():
        return "cancelled"
    if max_tokens is not None and step >= max_tokens:
        return "length"
    return "stop" if step >= len(pieces) else ""
