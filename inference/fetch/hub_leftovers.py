"""Half-written files in the hub's cache, from downloads that were killed."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout


def remove_leftovers(repo: str, cache: Path) -> int:
    """Delete a repository's half-written files and return their bytes.

    huggingface_hub writes `blobs/ETAG.RANDOM.incomplete` under the lock `.locks/REPO/ETAG.lock`, and never goes on
    with one of an earlier process. A file whose lock is held is still being written and stays.
    """
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repo, repo_type="model")
    freed = 0
    for path in (cache / folder / "blobs").glob("*.incomplete"):
        lock = cache / ".locks" / folder / f"{path.name.partition('.')[0]}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, blocking=False):
                freed += path.stat().st_size
                path.unlink()
        except Timeout:
            continue
    return freed
