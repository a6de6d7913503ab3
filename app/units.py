"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Bytes with a binary unit and three digits or fewer before the point: `98.4 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: int, noun: str) -> str:
    """A number with its noun: `1 layer`, `30 layers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """Seconds with a fitting unit: `12 ms`, `1.24 s`, `2 min 5 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
