"""The models that the menu and `chat models` list: those of the catalogue, and others found on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inference import hub
from inference.catalog import Catalog
from inference.events import Loading, Notice
from inference.fit import Fit, fit_by_size


@dataclass(frozen=True)
class ModelEntry:
    """A model to choose. `name` is what loads it; `path` is None where it must be fetched first, `bytes` those of all
    its files.

    `fit` is for the device that is in use; of a model that is here it is not known before its file is looked at.
    """

    name: str
    title: str
    bytes: int
    path: Path | None
    context: int = 0
    license: str = ""
    starter: bool = False
    fit: Fit = field(default_factory=Fit)


def model_entries(catalog: Catalog, store: hub.Store, device: str = "") -> list[ModelEntry]:
    """Models on this machine first, then the rest of the catalogue; within both, the catalogue's order.

    `device` is the one in use, "webgpu" or "cpu", or "" while that is not known.
    """
    here = {model.name: model for model in hub.installed(catalog, store)}
    entries = [
        ModelEntry(
            name=model.name,
            title=model.title,
            bytes=model.bytes,
            path=here[model.name].path if model.name in here else None,
            context=model.context,
            license=model.license,
            starter=model.name == catalog.starter,
            fit=Fit() if model.name in here else fit_by_size(model.bytes, model.parameters, device),
        )
        for model in catalog.models
    ]
    known = {model.name for model in catalog.models}
    entries += [ModelEntry(name, name, model.bytes, model.path) for name, model in here.items() if name not in known]
    return sorted(entries, key=lambda entry: entry.path is None)


def resolve_model(
    name: str,
    progress: Callable[[Loading | Notice], None],
    cancelled: Callable[[], bool],
    *,
    catalog: Catalog,
    store: hub.Store,
) -> str:
    """The local path of a model by name, fetched first where it is missing; errors as `hub.resolve` and `hub.fetch`."""
    return str(hub.fetch(hub.resolve(name, catalog, store), store, progress, cancelled))


def resolve_adapter(
    name: str, progress: Callable[[Loading | Notice], None], cancelled: Callable[[], bool], *, store: hub.Store
) -> str:
    """The local path of a LoRA adapter by name, fetched first where it is missing; errors as `hub.resolve_adapter` and
    `hub.fetch`."""
    return str(hub.fetch(hub.resolve_adapter(name, store), store, progress, cancelled))


def resolve_usable_model(
    name: str,
    kv: str,
    progress: Callable[[Loading | Notice], None],
    cancelled: Callable[[], bool],
    *,
    catalog: Catalog,
    store: hub.Store,
) -> str:
    """As `resolve_model`, and the files are known to be a model of a known family that can use the KV layout `kv`.

    The chat asks this before it closes the model that it has: a wrong file must not cost that one. Raises
    BadModelFile, UnsupportedModel and LayoutUnavailable besides.
    """
    from inference.kv.choose import choose_layouts
    from inference.model_files import open_files

    path = resolve_model(name, progress, cancelled, catalog=catalog, store=store)
    choose_layouts(open_files(Path(path)).config, kv)
    return path
