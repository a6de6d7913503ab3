"""Keeps native libraries' messages off the terminal: file descriptor 2 becomes the log file, `sys.stderr` stays."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_LOG_BYTES = 1_000_000


def start_log(path: Path) -> Path:
    """Send Python's own log and warnings to `path`, and return it; the null device where no file can be written there.

    A log past 1 MB is moved aside, replacing the one moved aside before it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
            path.replace(path.with_suffix(".old.log"))
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError:
        return Path(os.devnull)
    logging.basicConfig(
        handlers=[handler], level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.captureWarnings(True)
    return path


@contextmanager
def native_stderr_to_log(log: Path) -> Iterator[None]:
    """While inside, what native code prints to file descriptor 2 is appended to `log`.

    Python's `sys.stderr` still reaches the person. `sys.__stderr__`, on which Textual draws, is pointed at standard
    output: the screen is then unharmed by native code, and also where stderr was sent to a file.
    """
    original, original_raw = sys.stderr, sys.__stderr__
    original.flush()
    saved, target = os.dup(2), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    person = os.fdopen(saved, "w", encoding=original.encoding, errors="backslashreplace", buffering=1)
    screen = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(target, 2)
    os.close(target)
    sys.stderr, sys.__stderr__ = person, screen  # type: ignore[misc]
    try:
        yield
    finally:
        sys.stderr, sys.__stderr__ = original, original_raw  # type: ignore[misc]
        screen.close()
        person.flush()
        os.dup2(saved, 2)
        person.close()
