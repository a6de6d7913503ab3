"""Run a child process that can be cancelled at any moment and watched while it works."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from inference.errors import Cancelled

TICK_S = 0.1
# Time to remove half-written files after being asked to stop.
GRACE_S = 5.0


def run_child(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    cancelled: Callable[[], bool],
) -> tuple[int, str]:
    """Run a command in `folder` to its end and return its exit code and what it wrote to stderr.

    `on_line` gets each line of its stdout, `on_tick` is called about ten times a second. Where `cancelled` becomes
    true, or a callback raises, the whole process group is ended first. Raises Cancelled.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_forward_lines, args=(process, lines), daemon=True)
        reader.start()
        try:
            while True:
                if cancelled():
                    raise Cancelled("the download was cancelled")
                try:
                    line = lines.get(timeout=TICK_S)
                except queue.Empty:
                    on_tick()
                    continue
                if line is None:
                    break
                on_line(line)
            process.wait()
        finally:
            _end(process)
            reader.join()
        errors.seek(0)
        return process.returncode, errors.read().decode("utf-8", "replace")


def _forward_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as stdout:
        for line in stdout:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process group of a child that still runs: first by asking, so that it can clean up."""
    if process.poll() is not None:
        return
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()


def _signal_group(process: subprocess.Popen[str], number: int) -> None:
    if hasattr(os, "killpg"):
        # The child leads its own group: see start_new_session.
        os.killpg(process.pid, number)
    else:
        process.terminate()
