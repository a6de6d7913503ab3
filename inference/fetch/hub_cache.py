"""What the hub's shared cache holds, found and removed without asking the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.catalog import HubSource
from inference.fetch.hub_worker import choose_gguf


@dataclass(frozen=True)
class CachedFile:
    """A GGUF in the hub cache: `path` is its name in a snapshot of the repository, `bytes` what the file holds."""

    repo: str
    file: str
    path: Path
    bytes: int


def find_in_hub_cache(source: HubSource, cache: Path) -> Path | None:
    """The source's file in the hub cache; where the source names no file, the best one of its repository there."""
    from huggingface_hub import try_to_load_from_cache

    if source.file is None:
        cached = {found.file: found.path for found in hub_cache_files(cache) if found.repo == source.repo}
        best = choose_gguf(list(cached))
        return cached[best] if best else None
    found = try_to_load_from_cache(source.repo, source.file, cache_dir=cache, revision=source.revision)
    return Path(found) if isinstance(found, str) else None


def hub_cache_files(cache: Path) -> tuple[CachedFile, ...]:
    """Every GGUF in the hub cache, by repository and name; of several snapshots the latest counts."""
    from huggingface_hub import scan_cache_dir

    if not cache.is_dir():
        return ()
    latest: dict[tuple[str, str], CachedFile] = {}
    for repo in scan_cache_dir(cache).repos:
        for revision in sorted(repo.revisions, key=lambda each: each.last_modified):
            for file in revision.files:
                if file.file_path.suffix == ".gguf":
                    name = file.file_path.relative_to(revision.snapshot_path).as_posix()
                    latest[repo.repo_id, name] = CachedFile(repo.repo_id, name, file.file_path, file.size_on_disk)
    return tuple(latest[key] for key in sorted(latest))


def remove_from_hub_cache(path: Path, cache: Path) -> int:
    """Remove a file of the hub cache and return the bytes freed; a repository left without files goes as a whole.

    Its contents stay where another snapshot still uses them.
    """
    from huggingface_hub import scan_cache_dir

    info = scan_cache_dir(cache)
    for repo in info.repos:
        files = [file for revision in repo.revisions for file in revision.files]
        blob = next((file.blob_path for file in files if file.file_path == path), None)
        if blob is None:
            continue
        size = blob.stat().st_size
        if len(files) == 1:
            info.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
            return size
        path.unlink()
        if any(file.blob_path == blob for file in files if file.file_path != path):
            return 0
        blob.unlink(missing_ok=True)
        return size
    return 0
