"""Submitting steps and reading their results back, several in flight."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import wgpu

from inference.errors import DeviceLost
from inference.events import StepSpans
from inference.gpu.buffers import BufferPool
from inference.gpu.encoder import PassEncoder, Prepared

FINISHERS = 2
"""Threads that finish command buffers: with two, the GPU and no longer they are what decoding waits for."""


class StepQueue:
    """Steps in flight on one device, oldest first. Each copies a small result that is mapped when it is due.

    One thread encodes while others finish what it encoded, two steps at a time, and one more submits in order.
    """

    def __init__(self, device: Any, pool: BufferPool, encoder: PassEncoder, result: Any, depth: int) -> None:
        self.depth = depth
        self._device = device
        self._encoder = encoder
        self._result = result
        self._ring = deque(pool.create_readback(result.size, f"result {index}") for index in range(depth))
        self._in_flight: deque[tuple[Future[Any], Any]] = deque()
        # Finishing a command buffer costs more than encoding it, and releases the interpreter's lock.
        self._finishers = ThreadPoolExecutor(FINISHERS, thread_name_prefix="finish")
        self._submitter = ThreadPoolExecutor(1, thread_name_prefix="submit")
        self.encode_s = 0.0
        self.finish_s = 0.0
        self.submit_s = 0.0
        self.wait_s = 0.0
        self.steps = 0
        self.dispatches = 0

    def submit(self, prepared: Prepared, measured: bool) -> None:
        """Encode one step in one compute pass; other threads finish and submit it and ask for its result.

        `measured` steps count in the host costs; `dispatches` are those of the last one.
        """
        readback = self._ring.popleft()
        start = time.perf_counter()
        encoder = self._device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        self._encoder.encode(compute_pass, prepared)
        compute_pass.end()
        encoder.copy_buffer_to_buffer(self._result, 0, readback, 0, self._result.size)
        if measured:
            self.encode_s += time.perf_counter() - start
            self.steps += 1
            self.dispatches = len(prepared)
        finished = self._finishers.submit(self._finish, encoder, measured)
        self._in_flight.append((self._submitter.submit(self._submit, finished, readback, measured), readback))

    def next_result(self) -> np.ndarray:
        """Wait for the oldest step; its result as uint32 words. Raises DeviceLost."""
        start = time.perf_counter()
        submitted, readback = self._in_flight.popleft()
        try:
            _guarded(submitted.result().sync_wait)
            words = np.frombuffer(readback.read_mapped(copy=True), np.uint32)
            readback.unmap()
        finally:
            self._ring.append(readback)
        self.wait_s += time.perf_counter() - start
        return words

    def wait_submitted(self) -> None:
        """Wait until every step so far is with the device, in order before whatever is submitted next."""
        for submitted, _ in self._in_flight:
            submitted.result()

    def drain(self) -> None:
        """Wait for every step in flight and drop the results."""
        while self._in_flight:
            self.next_result()

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
                    while len(self._in_flight) < self.depth and more():
                        submit()
                    if not self._in_flight:
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

    def reset_cost(self) -> None:
        """Start measuring host costs anew."""
        self.encode_s = self.finish_s = self.submit_s = self.wait_s = 0.0
        self.steps = 0

    def close(self) -> None:
        """Wait for what is in flight and end the threads."""
        try:
            self.drain()
        finally:
            self._finishers.shutdown()
            self._submitter.shutdown()

    def _finish(self, encoder: Any, measured: bool) -> Any:
        start = time.perf_counter()
        commands = _guarded(encoder.finish)
        if measured:
            self.finish_s += time.perf_counter() - start
        return commands

    def _submit(self, finished: Future[Any], readback: Any, measured: bool) -> Any:
        """Submit, in the order of the calls, and start mapping the result."""
        commands = finished.result()
        start = time.perf_counter()
        _guarded(lambda: self._device.queue.submit([commands]))
        promise = readback.map_async(wgpu.MapMode.READ)
        if measured:
            self.submit_s += time.perf_counter() - start
        return promise


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
