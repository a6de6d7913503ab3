"""Submitting steps and reading their results back, several at a time and several in flight."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import wgpu

from inference.errors import DeviceLost
from inference.events import StepSpans
from inference.gpu.buffers import BufferPool
from inference.gpu.encoder import PassEncoder, Prepared

GROUPS_OF_ONE = 3
"""In flight at most where a group is one step."""


@dataclass(frozen=True)
class InFlight:
    """How far the device may be ahead of what the host has read: up to `groups` groups of up to `steps` steps.

    The steps of a group are finished, submitted and mapped as one, which costs the host less, but their results come
    together: a group has as many as take about `seconds`. Where that is one, few groups are enough, as a step takes
    longer than what the host does for it.
    """

    groups: int
    steps: int
    seconds: float = 4e-3

    @property
    def depth(self) -> int:
        """Steps in flight at most."""
        return self.groups * self.steps

    @property
    def slots(self) -> int:
        """Results that there is room for: those of one group more, as `wait_submitted` may close one early."""
        return (self.groups + 1) * self.steps

    def group_size(self, step_s: float) -> int:
        """Steps in a group where each takes `step_s` seconds: at least one."""
        return max((count for count in range(1, self.steps + 1) if count * step_s <= self.seconds), default=1)

    def ahead(self, size: int) -> int:
        """Groups in flight where each has `size` steps."""
        return self.groups if size > 1 else min(self.groups, GROUPS_OF_ONE)


@dataclass(eq=False)
class _Group:
    """Steps in one command buffer, each in a compute pass of its own and with its own slot of `readback`."""

    commands: Any
    readback: Any
    measured: bool
    steps: int = 0
    results: deque[np.ndarray] = field(default_factory=deque)


class StepQueue:
    """Steps in flight on one device, oldest first, in groups. Each copies a small result that is mapped when it is due.

    One thread encodes while another finishes what it encoded, and one more submits that.
    """

    def __init__(self, device: Any, pool: BufferPool, encoder: PassEncoder, result: Any, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        self._device = device
        self._encoder = encoder
        self._result = result
        size = result.size * in_flight.steps
        self._free = [pool.create_readback(size, f"results {index}") for index in range(in_flight.groups + 1)]
        self._open: _Group | None = None
        self._closed: deque[tuple[_Group, Future[Any]]] = deque()
        self._size = 1
        # When a result was last heard of, and what it took with those before, as (seconds, steps): of several groups,
        # since what lies ready after a pause of the reader seems to take no time.
        self._heard = 0.0
        self._took: deque[tuple[float, int]] = deque(maxlen=in_flight.groups + 1)
        # Finishing a command buffer costs more than encoding it, and releases the interpreter's lock.
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._submitter = ThreadPoolExecutor(1, thread_name_prefix="submit")
        self.encode_s = 0.0
        self.finish_s = 0.0
        self.submit_s = 0.0
        self.wait_s = 0.0
        self.steps = 0
        self.dispatches = 0

    def begin_stream(self) -> None:
        """Measure host costs anew. The first step goes alone, as do all until it is known what a step takes."""
        self.encode_s = self.finish_s = self.submit_s = self.wait_s = 0.0
        self.steps = 0
        self._size = 1
        self._took.clear()
        self._heard = time.perf_counter()

    def submit(self, prepared: Prepared, measured: bool) -> None:
        """Encode one step in one compute pass of the open group, and close that when it is full.

        `measured` steps count in the host costs; `dispatches` are those of the last one.
        """
        start = time.perf_counter()
        # While a step is being encoded its group is nowhere: one that is broken off half way can't be submitted.
        group, self._open = self._open or self._new_group(measured), None
        try:
            compute_pass = group.commands.begin_compute_pass()
            self._encoder.encode(compute_pass, prepared)
            compute_pass.end()
            size = self._result.size
            group.commands.copy_buffer_to_buffer(self._result, 0, group.readback, group.steps * size, size)
        except BaseException:
            self._free.append(group.readback)
            raise
        group.steps += 1
        self._open = group
        if measured:
            self.encode_s += time.perf_counter() - start
            self.steps += 1
            self.dispatches = len(prepared)
        if group.steps >= self._size:
            self.close_group()

    def close_group(self) -> None:
        """Have other threads finish and submit the open group, if there is one, and ask for its results."""
        if self._open is not None:
            group, self._open = self._open, None
            finished = self._finisher.submit(self._finish, group)
            self._closed.append((group, self._submitter.submit(self._submit, finished, group)))

    def next_result(self) -> np.ndarray:
        """Wait for the oldest step of the closed groups; its result as uint32 words. Raises DeviceLost."""
        start = time.perf_counter()
        group, submitted = self._closed[0]
        if not group.results:
            self._read(group, submitted)
        words = group.results.popleft()
        if not group.results:
            self._closed.popleft()
        self.wait_s += time.perf_counter() - start
        return words

    def wait_submitted(self) -> None:
        """Wait until every step so far is with the device, in order before whatever is submitted next."""
        self.close_group()
        for _, submitted in self._closed:
            submitted.result()

    def drain(self) -> None:
        """Wait for every step in flight and drop the results. Raises DeviceLost, and then too nothing is in flight."""
        self.close_group()
        try:
            while self._closed:
                self.next_result()
        except DeviceLost:
            self.drain()
            raise

    def results(
        self, began: float, more: Callable[[], bool], submit: Callable[[], None]
    ) -> Generator[tuple[np.ndarray, StepSpans], None, None]:
        """The results of the steps in flight and of those that `submit` submits while `more` gives True, in order.

        Each with what it took since the one before, the first since `began`. Closing waits for what is in flight.
        """
        finish_s, submit_s = self.finish_s, self.submit_s
        try:
            with _short_switch_interval():
                while True:
                    while len(self._closed) < self.in_flight.ahead(self._size) and more():
                        submit()
                    # Where no more steps follow, those of a group that is not full are due as well.
                    self.close_group()
                    if not self._closed:
                        return
                    encoded = time.perf_counter()
                    words = self.next_result()
                    waited = time.perf_counter() - encoded
                    others = (self.finish_s - finish_s, self.submit_s - submit_s)
                    finish_s, submit_s = self.finish_s, self.submit_s
                    yield words, StepSpans(encoded - began, waited, 0.0, *others)
                    began = time.perf_counter()
        finally:
            self.drain()

    def close(self) -> None:
        """Wait for what is in flight and end the threads."""
        try:
            self.drain()
        finally:
            self._finisher.shutdown()
            self._submitter.shutdown()

    def _new_group(self, measured: bool) -> _Group:
        return _Group(self._device.create_command_encoder(), self._free.pop(), measured)

    def _finish(self, group: _Group) -> Any:
        start = time.perf_counter()
        commands = _guarded(group.commands.finish)
        if group.measured:
            self.finish_s += time.perf_counter() - start
        return commands

    def _submit(self, finished: Future[Any], group: _Group) -> Any:
        """Submit, in the order of the calls, and start mapping the results."""
        commands = finished.result()
        start = time.perf_counter()
        _guarded(lambda: self._device.queue.submit([commands]))
        promise = _guarded(lambda: group.readback.map_async(wgpu.MapMode.READ))
        if group.measured:
            self.submit_s += time.perf_counter() - start
        return promise

    def _read(self, group: _Group, submitted: Future[Any]) -> None:
        """Wait for the results of the oldest group; what a step of it took decides how many the next ones have."""
        try:
            _guarded(submitted.result().sync_wait)
            words = np.frombuffer(_guarded(lambda: group.readback.read_mapped(copy=True)), np.uint32)
            _guarded(group.readback.unmap)
        except BaseException:
            self._closed.popleft()
            raise
        finally:
            self._free.append(group.readback)
        group.results.extend(words.reshape(self.in_flight.steps, -1)[: group.steps])
        now = time.perf_counter()
        if group.measured:
            self._took.append((now - self._heard, group.steps))
            seconds, steps = (sum(each) for each in zip(*self._took, strict=True))
            self._size = self.in_flight.group_size(seconds / steps)
        self._heard = now


def run_once(device: Any, encoder: PassEncoder, prepared: Prepared) -> None:
    """Encode and submit dispatches without asking for a result."""
    command_encoder = device.create_command_encoder()
    compute_pass = command_encoder.begin_compute_pass()
    encoder.encode(compute_pass, prepared)
    compute_pass.end()
    _guarded(lambda: device.queue.submit([command_encoder.finish()]))


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """With the default 5 ms a busy screen takes a third of the encoder's time.

    On an H200 0.1 ms was worse than 0.5 ms: 0.88 of the speed without a screen against 0.93.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _guarded(call: Callable[[], Any]) -> Any:
    """wgpu-py cannot report a lost device by promise: it shows as a call that fails."""
    try:
        return call()
    except (wgpu.GPUError, RuntimeError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DeviceLost(
            f"the GPU stopped answering ({first_line}); load the model again or use --device cpu"
        ) from error
