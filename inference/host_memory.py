"""Memory of this process and of its machine."""

from __future__ import annotations

import os
import sys


def peak_resident_bytes() -> int:
    """The largest resident size of this process so far; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # ru_maxrss is in KiB, except on macOS, where it is in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def physical_bytes() -> int | None:
    """The machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
