"""One step of a plan, run as the segments that its devices take turns in; on one device there is only one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from inference.kv.layout import KvCache
from inference.plan.ops import Device, Logits
from inference.plan.place import Segment

Appended = Sequence[tuple[KvCache[Any], Sequence[int]]]
"""What a step does: token ids, and the cache that they are appended to."""

Values = dict[str, np.ndarray]
"""The tensors of a step that lie in the host's memory, by name: float32 (T, columns)."""


class RunSegment(Protocol):
    """Runs one segment of a step on one device.

    It takes from `values` what it reads, and puts there what operations after it read on the CPU, as well as the
    plan's result where the segment is the last.
    """

    def __call__(self, index: int, appended: Appended, logits: Logits, values: Values) -> None: ...


def count_rows(appended: Appended) -> int:
    """The rows of a step."""
    return sum(len(ids) for _, ids in appended)


def run_step(
    segments: Sequence[Segment], run: Mapping[Device, RunSegment], appended: Appended, logits: Logits
) -> np.ndarray | None:
    """Append tokens to each of these caches; returns float32 logits (V,) for "last", (T, V) for "all", else None."""
    # First room for all, so that nothing has begun where one has none.
    for cache, ids in appended:
        cache.note(cache.length, ids)
        cache.ensure(cache.length + len(ids))
    for cache, _ in appended:
        cache.begin()
    values: Values = {}
    for index, segment in enumerate(segments):
        run[segment.device](index, appended, logits, values)
        if not segment.last:
            for name in values.keys() - segment.kept:
                del values[name]
    for cache, ids in appended:
        cache.length += len(ids)
    if logits == "none":
        return None
    output = values[segments[-1].plan.ops[-1].output.name]
    return output[0] if logits == "last" else output


@contextmanager
def timed(name: str, times: dict[str, float] | None) -> Iterator[None]:
    """Adds the seconds of what is done inside to `times`, where there are any."""
    began = time.perf_counter()
    yield
    if times is not None:
        times[name] = time.perf_counter() - began
