"""Plain output for the commands without a screen: a progress line, and text that is safe for where it goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from app.sanitize import visible
from app.units import format_bytes
from inference.events import Loading, Notice

_PERIOD_S = 0.1


class ProgressLine:
    """One line on stderr that is rewritten in place and wiped at the end, where stderr is a terminal; and notices."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._shown = self._out.isatty()
        self._last = 0.0
        self._dirty = False

    def __call__(self, event: Loading | Notice) -> None:
        """Show progress, at most ten times a second; or a notice, wherever stderr goes, on a line of its own."""
        if isinstance(event, Notice):
            self.wipe()
            print(" ".join(visible(event.text).split()), file=self._out, flush=True)
            return
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._last < _PERIOD_S and (event.done != event.total or not event.total):
            return
        self._last, self._dirty = now, True
        share = f" {event.done / event.total:4.0%} of {format_bytes(event.total)}" if event.total else ""
        self._out.write(f"\r\x1b[K{visible(event.stage)}{share}")
        self._out.flush()

    def wipe(self) -> None:
        """Take the line away."""
        if self._dirty:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._dirty = False


def print_table(rows: Sequence[tuple[str, ...]], out: TextIO | None = None) -> None:
    """Rows in columns, each as wide as its widest cell; control characters are made visible."""
    out = out or sys.stdout
    cells = [tuple(visible(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=out)
