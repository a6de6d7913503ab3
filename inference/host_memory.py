"""Memory of this process."""

from __future__ import annotations

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
