"""What this machine offers and what stands in the way: the report behind `chat doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from inference import hub
from inference.catalog import load_catalog
from inference.gpu.survey import GpuSurvey, survey

PACKAGES = ("wgpu", "numpy", "tokenizers", "huggingface_hub", "jinja2", "threadpoolctl")
ROOM_WANTED = 2 * 10**9
"""Bytes free below which a download of a middling model may fail."""

Row = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Folder:
    """A folder in use. `free_bytes` is what its file system has left."""

    purpose: str
    path: str
    free_bytes: int
    writable: bool


@dataclass(frozen=True)
class Blas:
    """A BLAS library that NumPy has loaded."""

    library: str
    version: str
    threads: int


@dataclass(frozen=True)
class Model:
    """A model on this machine."""

    name: str
    path: str
    bytes: int


@dataclass(frozen=True)
class HubState:
    """How the Hugging Face hub would be asked. `token` tells whether there is one, not what it is."""

    endpoint: str
    offline: bool
    token: bool


@dataclass(frozen=True)
class DoctorReport:
    """Everything that `chat doctor` tells. What could not be read is None or empty, with a line in `problems`."""

    versions: dict[str, str]
    system: str
    cores: int
    blas: tuple[Blas, ...]
    gpu: GpuSurvey
    folders: tuple[Folder, ...]
    models: tuple[Model, ...]
    hub: HubState | None
    problems: tuple[str, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """(label, value) pairs for people; problems last."""
        versions = self.versions | {"wgpu-native": self.gpu.native_version or "unknown"}
        return (
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
            ("system", f"{self.system}, {self.cores} cores"),
            *(("BLAS", f"{blas.library} {blas.version}, {_count(blas.threads, 'thread')}") for blas in self.blas),
            *_gpu_rows(self.gpu),
            *(_folder_row(folder) for folder in self.folders),
            *_model_rows(self.models),
            *_hub_rows(self.hub),
            *(("problem", problem) for problem in self.problems or ("none found",)),
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def report(store: hub.Store | None = None) -> DoctorReport:
    """Look at this machine; takes a few seconds. Raises nothing: what fails becomes a problem of the report."""
    problems: list[str] = []

    def tried(what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:
            problems.append(f"{what} could not be read ({type(error).__name__}: {' '.join(str(error).split())})")
            return None

    store = store or tried("the cache folders", hub.default_store)
    gpu = survey()
    folders = (store and tried("the folders", lambda: _folders(store))) or ()
    models = (store and tried("the installed models", lambda: _models(store))) or ()
    hub_state = tried("the hub's settings", _hub_state)
    return DoctorReport(
        versions=_versions(),
        system=platform.platform(),
        cores=os.cpu_count() or 1,
        blas=tried("NumPy's BLAS", _blas) or (),
        gpu=gpu,
        folders=folders,
        models=models,
        hub=hub_state,
        problems=(*problems, *_gpu_problems(gpu), *_folder_problems(folders), *_hub_problems(hub_state, models)),
    )


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def _blas() -> tuple[Blas, ...]:
    import numpy as np  # noqa: F401  # loads the library that is looked for
    from threadpoolctl import threadpool_info

    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    return tuple(Blas(pool["internal_api"], pool["version"] or "", pool["num_threads"]) for pool in pools)


def _folders(store: hub.Store) -> tuple[Folder, ...]:
    used = (
        ("models", store.folder),
        ("hub cache", store.hub_cache),
        ("tokenizers", store.folder.parent / "tokenizers"),
    )
    return tuple(_folder(purpose, path) for purpose, path in used)


def _folder(purpose: str, path: Path) -> Folder:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return Folder(
        purpose, str(path), shutil.disk_usage(existing).free, existing.is_dir() and os.access(existing, os.W_OK)
    )


def _models(store: hub.Store) -> tuple[Model, ...]:
    return tuple(Model(model.name, str(model.path), model.bytes) for model in hub.installed(load_catalog(), store))


def _hub_state() -> HubState:
    from huggingface_hub import constants, get_token

    return HubState(constants.ENDPOINT, constants.HF_HUB_OFFLINE, get_token() is not None)


def _gpu_rows(gpu: GpuSurvey) -> Iterable[Row]:
    for adapter in gpu.adapters:
        yield "adapter", f"{adapter['name']}, {adapter['backend']}, {adapter['type']}; {adapter['reason']}"
        yield "  features", ", ".join(adapter["features"]) or "none that Glasschat uses"
        yield "  limits", ", ".join(f"{name} {value:,}" for name, value in adapter["limits"].items())
    if not gpu.adapters:
        yield "adapter", "none"
    yield "device auto", f"{gpu.device}: {gpu.device_reason}"
    if gpu.caps is not None:
        caps = gpu.caps
        size = caps["subgroup_size"]
        yield "subgroups", f"{size} wide at the least, by a probe" if size else f"not used: {caps['subgroup_reason']}"
        yield "16-bit floats", "yes" if caps["f16"] else "no: keys and values are kept in f32"
        yield "GPU timestamps", "yes" if caps["timestamps"] else "no: kernels cannot be timed one by one"
        yield "encoding", "raw C functions of wgpu-native" if gpu.raw_encoding else "public calls of wgpu"


def _folder_row(folder: Folder) -> Row:
    note = "" if folder.writable else ", not writable"
    return f"folder, {folder.purpose}", f"{folder.path}, {_size(folder.free_bytes)} free{note}"


def _model_rows(models: tuple[Model, ...]) -> Iterable[Row]:
    if not models:
        return (("model", "none on this machine; `chat models` lists those to be had"),)
    return tuple(("model", f"{model.name}, {_size(model.bytes)}, {model.path}") for model in models)


def _hub_rows(state: HubState | None) -> Iterable[Row]:
    if state is None:
        return ()
    mode = "offline, as HF_HUB_OFFLINE says" if state.offline else "online"
    token = "with a login" if state.token else "without a login: gated models cannot be fetched"
    return (("hub", f"{state.endpoint}, {mode}, {token}"),)


def _gpu_problems(gpu: GpuSurvey) -> Iterable[str]:
    if gpu.problem:
        yield gpu.problem
    elif gpu.caps is not None and gpu.caps["software"]:
        yield (
            "no GPU was found, only software that computes on the processor; "
            "if this machine has a GPU, install its driver with Vulkan, Metal or D3D12"
        )
    if gpu.caps is not None and not gpu.raw_encoding:
        yield (
            "this version of wgpu hides its C functions, so encoding takes about three times as long; "
            "install the version that Glasschat asks for"
        )


def _folder_problems(folders: Iterable[Folder]) -> Iterable[str]:
    for folder in folders:
        if not folder.writable:
            yield f"{folder.path} cannot be written; change its permissions, or set another cache folder"
        elif folder.free_bytes < ROOM_WANTED:
            yield f"{folder.path} has only {_size(folder.free_bytes)} free; a model may not fit: free some space"


def _hub_problems(state: HubState | None, models: tuple[Model, ...]) -> Iterable[str]:
    if state is not None and state.offline and not models:
        yield "HF_HUB_OFFLINE is set and no model is on this machine; unset it to fetch one from the hub"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _size(count: int) -> str:
    """A size for people: 98362432 is "93.8 MiB"."""
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
