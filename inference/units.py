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
