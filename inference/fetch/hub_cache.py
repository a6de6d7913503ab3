"""What the hub's shared cache holds, found and removed without asking the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.catalog import HubSource
from inference.fetch.choices import Choice, choose, choose_adapter, list_adapters, list_choices


@dataclass(frozen=True)
class CachedModel:
    """A whole model in the hub cache: `choice.name` resolves to it, `folder` is the snapshot that has its files."""

    choice: Choice
    folder: Path

    @property
    def path(self) -> Path:
        """Its first GGUF file, or its folder."""
        return model_path(self.folder, self.choice)

    @property
    def contents(self) -> frozenset[tuple[str, Path]]:
        """Its files' names, and where their contents lie."""
        return frozenset((file, (self.folder / file).resolve()) for file in self.choice.files)


def find_in_hub_cache(source: HubSource, cache: Path) -> Path | None:
    """What the source names in the hub cache, where all its files are in the snapshot of its revision."""
    from huggingface_hub.file_download import repo_folder_name

    folder = cache / repo_folder_name(repo_id=source.repo, repo_type="model")
    ref = folder / "refs" / source.revision
    snapshot = folder / "snapshots" / (ref.read_text().strip() if ref.is_file() else source.revision)
    sizes = _sizes(snapshot)
    try:
        if source.kind == "adapter":
            choice = choose_adapter(list_adapters(sizes), source.file, source.quantization)
        else:
            choice = choose(list_choices(sizes), source.file, source.quantization)
        return model_path(snapshot, choice)
    except LookupError:
        return None


def repository_of(snapshot: Path) -> str | None:
    """The repository, as org/repo, whose snapshot in the hub cache this folder is; None for any other folder."""
    kind, *parts = snapshot.parent.parent.name.split("--")
    return "/".join(parts) if snapshot.parent.name == "snapshots" and kind == "models" else None


def cached_models(cache: Path) -> tuple[CachedModel, ...]:
    """Every whole model in the hub cache, by repository; those of the branch `main` first.

    One that several revisions share comes once. A revision that no branch or tag stands for is named by its commit.
    """
    from huggingface_hub import scan_cache_dir

    if not cache.is_dir():
        return ()
    found: dict[frozenset[tuple[str, Path]], CachedModel] = {}
    repos = [repo for repo in scan_cache_dir(cache).repos if repo.repo_type == "model"]
    for repo in sorted(repos, key=lambda each: each.repo_id):
        # False sorts before True, so main comes first, then other names, then the newest of bare commits.
        for revision in sorted(
            repo.revisions, key=lambda each: ("main" not in each.refs, not each.refs, -each.last_modified)
        ):
            name = "main" if "main" in revision.refs else min(revision.refs, default=revision.commit_hash)
            for choice in list_choices(_sizes(revision.snapshot_path), repo.repo_id, name):
                model = CachedModel(choice, revision.snapshot_path)
                found.setdefault(model.contents, model)
    return tuple(found.values())


def model_path(folder: Path, choice: Choice) -> Path:
    """What stands for the choice whose files are in `folder`: its first GGUF file, or the folder."""
    return folder if choice.is_folder else folder / choice.files[0]


def remove_from_hub_cache(model: CachedModel, cache: Path) -> int:
    """Remove the model's files, from all revisions that share them, and return the bytes freed.

    Contents that other files share stay. A repository left without files goes as a whole.
    """
    from huggingface_hub import scan_cache_dir

    info, contents = scan_cache_dir(cache), model.contents
    for repo in info.repos:
        if repo.repo_path in model.folder.parents:
            files = [(revision.snapshot_path, file) for revision in repo.revisions for file in revision.files]
            ours = [
                file
                for snapshot, file in files
                if (file.file_path.relative_to(snapshot).as_posix(), file.file_path.resolve()) in contents
            ]
            everything = len(ours) == len(files)
            commits = [revision.commit_hash for revision in repo.revisions]
            strategy = info.delete_revisions(*commits) if everything else info.delete_files(*ours)
            strategy.execute()
            return strategy.expected_freed_size
    return 0


def _sizes(folder: Path) -> dict[str, int]:
    """Names below a folder, and their sizes in bytes; links to nothing do not count."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
