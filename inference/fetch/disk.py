"""Room on the disk: asked for before a download starts, and named when it runs out during one."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from inference.errors import FetchFailed


def require_room(folder: Path, needed: int) -> None:
    """Raise FetchFailed where the file system of `folder` (or of its nearest parent) has fewer than `needed` bytes."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise FetchFailed(
            f"needs {megabytes(needed)} in {folder}, where {megabytes(free)} are free; "
            "free some space, or set another cache folder"
        )


def write_failure(error: OSError, folder: Path) -> FetchFailed:
    """The error to raise when writing below `folder` failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchFailed(f"filled the disk that holds {folder}; nothing was kept: free some space and try again")
    return FetchFailed(f"could not be written to {folder} ({error.strerror or error}); nothing was kept")


def megabytes(count: int) -> str:
    """A size for people: 98362432 is "98 MB"."""
    return f"{count / 1e6:,.0f} MB"
