"""Numbers as people read them."""

from __future__ import annotations

from inference.units import format_bytes as format_bytes


def format_count(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 layer`, `30 layers`. `plural` is for a noun whose plural is not with an s alone."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_seconds(seconds: float) -> str:
    """Seconds with a fitting unit: `12 ms`, `1.24 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
