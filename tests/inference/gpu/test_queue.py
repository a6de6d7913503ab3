"""Which steps are submitted together, and in what order results come, on a device that does nothing but count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest

from inference.errors import DeviceLost
from inference.gpu.queue import InFlight, StepQueue

GROUPED = InFlight(groups=3, steps=3, seconds=60)
WORDS = 2


class Buffer:
    """A result or what it is copied to; its own promise when it is mapped."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.words = np.zeros(size // 4, np.uint32)
        self.unmap = self.sync_wait = lambda: None

    def map_async(self, _mode: Any) -> Buffer:
        return self

    def read_mapped(self, copy: bool) -> bytes:
        return self.words.tobytes()


class Commands:
    """A command encoder, its passes, and its command buffer: a list of what the device is to do."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.slots: list[tuple[Buffer, int]] = []
        self.end = lambda: None

    def begin_compute_pass(self) -> Commands:
        return self

    def copy_buffer_to_buffer(self, _source: Any, _start: int, target: Buffer, offset: int, _size: int) -> None:
        self.slots.append((target, offset // 4))

    def finish(self) -> Commands:
        return self


class Device:
    """Each step's result is its number. `log` holds the steps of each submission."""

    def __init__(self, lost_after: int = 1000) -> None:
        self.log: list[Any] = []
        self.queue = self
        self.create_command_encoder = Commands
        self._lost_after = lost_after

    def create_readback(self, size: int, _label: str) -> Buffer:
        return Buffer(size)

    def submit(self, buffers: list[Commands]) -> None:
        if len(self.log) >= self._lost_after:
            raise RuntimeError("Parent device is lost")
        for commands in buffers:
            self.log.append(commands.steps)
            for step, (target, at) in zip(commands.steps, commands.slots, strict=True):
                target.words[at : at + WORDS] = step


class Encoder:
    """Steps are told apart by their number of dispatches."""

    def encode(self, commands: Commands, prepared: Any) -> None:
        commands.steps.append(len(prepared))


class Steps:
    """A stream of `count` steps on a queue; `before` hears the number of each before it is encoded."""

    def __init__(self, device: Device, in_flight: InFlight = GROUPED) -> None:
        self.device = device
        self.queue = StepQueue(device, device, Encoder(), Buffer(4 * WORDS), in_flight)  # type: ignore[arg-type]
        self.begun = self.seen = self.most = 0

    def run(self, count: int, before: Callable[[int], None] = lambda _: None) -> Any:
        self.begun = self.seen = 0
        self.queue.begin_stream()

        def submit() -> None:
            before(self.begun)
            self.queue.submit([None] * self.begun, measured=True)
            self.begun += 1
            self.most = max(self.most, self.begun - self.seen)

        submit()
        with closing(self.queue.results(0.0, lambda: self.begun < count, submit)) as results:
            for words, _ in results:
                self.seen += 1
                assert words.shape == (WORDS,)
                yield int(words[0])


@pytest.fixture
def steps() -> Any:
    made = Steps(Device())
    yield made
    made.queue.close()


def test_a_group_has_as_many_steps_as_fit_its_time() -> None:
    in_flight = InFlight(groups=3, steps=3, seconds=4e-3)
    assert [in_flight.group_size(ms / 1e3) for ms in (0, 0.5, 1.3, 1.4, 2, 2.1, 4, 5, 1000)] == [
        3,
        3,
        3,
        2,
        2,
        1,
        1,
        1,
        1,
    ]
    assert InFlight(groups=1, steps=1).group_size(1e-6) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 12, 13, 14])
def test_results_come_in_order_and_the_first_step_goes_alone(steps: Steps, count: int) -> None:
    for _ in range(2):
        assert list(steps.run(count)) == list(range(count))
    together = [range(3, count)[start : start + 3] for start in range(0, count - 3, 3)]
    assert steps.device.log == 2 * [*([step] for step in range(min(3, count))), *map(list, together)]
    assert steps.queue.steps == count and steps.queue.dispatches == count - 1


def test_slow_steps_go_one_by_one() -> None:
    slow = Steps(Device(), InFlight(groups=3, steps=3, seconds=0.0))
    assert list(slow.run(10)) == list(range(10))
    assert slow.device.log == [[step] for step in range(10)] and slow.most == 3
    slow.queue.close()


def test_a_pause_of_the_reader_makes_no_step_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 30 ms; after the tenth the reader takes 200 ms, and what came meanwhile takes no time to hear of."""
    now = done = 0.0

    class Timed(Device):
        def submit(self, buffers: list[Commands]) -> None:
            nonlocal done
            super().submit(buffers)
            done = max(done, now) + 0.03 * len(buffers[0].steps)
            buffers[0].slots[0][0].sync_wait = lambda at=done: wait(at)  # type: ignore[misc]

    def wait(at: float) -> None:
        nonlocal now
        now = max(now, at)

    monkeypatch.setattr("inference.gpu.queue.time.perf_counter", lambda: now)
    slow = Steps(Timed(), InFlight(groups=5, steps=3, seconds=4e-3))
    for step in slow.run(40):
        now += 0.2 if step == 10 else 0.0
    assert slow.device.log == [[step] for step in range(40)] and slow.most == 3
    slow.queue.close()


def test_growing_comes_after_the_steps_before_it(steps: Steps) -> None:
    """Wherever in a group it happens, and never with more in flight than is said."""
    for at in range(1, 16):
        steps.device.log.clear()

        def grow(step: int, at: int = at) -> None:
            if step in (at, at + 4):
                steps.queue.wait_submitted()
                steps.device.log.append(["grown"])

        assert list(steps.run(25, grow)) == list(range(25))
        done = [step for group in steps.device.log for step in group]
        assert done == [*range(at), "grown", *range(at, at + 4), "grown", *range(at + 4, 25)]
    assert steps.most == GROUPED.depth


@pytest.mark.parametrize("taken", range(1, 12))
def test_left_early_all_that_has_begun_is_done(steps: Steps, taken: int) -> None:
    with closing(steps.run(1000)) as results:
        assert list(islice(results, taken)) == list(range(taken))
    assert [step for group in steps.device.log for step in group] == list(range(steps.begun))
    assert taken < steps.begun <= taken + GROUPED.depth
    assert list(steps.run(20)) == list(range(20))


@pytest.mark.parametrize("submissions", range(6))
def test_a_lost_device_is_told_once(submissions: int) -> None:
    lost = Steps(Device(submissions))
    with pytest.raises(DeviceLost, match="Parent device is lost"):
        list(lost.run(100))
    with pytest.raises(DeviceLost):
        list(lost.run(100))
    lost.queue.close()


def test_a_step_that_cannot_be_encoded_ends_the_stream(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a group; what was submitted before is waited for."""
    encode = Encoder.encode

    def failing(self: Encoder, commands: Commands, prepared: Any) -> None:
        encode(self, commands, prepared)
        if len(prepared) == 7:
            raise MemoryError

    monkeypatch.setattr(Encoder, "encode", failing)
    for _ in range(GROUPED.groups + 2):
        steps.device.log.clear()
        with pytest.raises(MemoryError):
            list(steps.run(100))
        assert steps.device.log == [[0], [1], [2], [3, 4, 5]]
