"""Keeps native libraries' messages off the screen: while the chat runs, file descriptor 2 is the log file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_LOG_BYTES = 1_000_000


def start_log(path: Path) -> None:
    """Send Python's own log to `path`. A log past 1 MB is moved aside, replacing the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_suffix(".old.log"))
    logging.basicConfig(
        filename=path, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", encoding="utf-8"
    )


@contextmanager
def stderr_to_log(path: Path) -> Iterator[None]:
    """While inside, what anything writes to file descriptor 2 is appended to `path`; afterwards it is as before.

    Textual draws on `sys.__stderr__`, so that is pointed at the terminal of standard output for the time being. The
    screen is then unharmed also where the person sent stderr to a file.
    """
    saved = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stderr.flush()
    original = sys.__stderr__
    screen = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    try:
        os.dup2(log, 2)
        sys.__stderr__ = screen  # type: ignore[misc]
        yield
    finally:
        screen.flush()
        sys.stderr.flush()
        sys.__stderr__ = original  # type: ignore[misc]
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)
        screen.close()
