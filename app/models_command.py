"""`chat models`: list, pull, info and rm."""

from __future__ import annotations

from pathlib import Path

from app.model_list import model_entries, resolve_model
from app.terminal import ProgressLine, print_table
from app.units import format_bytes
from inference import hub
from inference.catalog import Catalog
from inference.errors import ModelNotFound


def show_list(catalog: Catalog, store: hub.Store) -> int:
    """The models on this machine and those of the catalogue."""
    rows: list[tuple[str, ...]] = [("NAME", "SIZE", "CONTEXT", "LICENCE", "WHERE")]
    for entry in model_entries(catalog, store):
        where = str(entry.path) if entry.path else "to fetch" + (", the starter" if entry.starter else "")
        rows.append((entry.name, format_bytes(entry.bytes), str(entry.context or "-"), entry.license or "-", where))
    print_table(rows)
    return 0


def pull(name: str, catalog: Catalog, store: hub.Store) -> int:
    """Fetch a model; prints the path of its file."""
    progress = ProgressLine()
    try:
        path = resolve_model(name, progress, lambda: False, catalog=catalog, store=store)
    finally:
        progress.wipe()
    print(path)
    return 0


def info(name: str, catalog: Catalog, store: hub.Store) -> int:
    """What is known of a model without opening it."""
    found = hub.resolve(name, catalog, store)
    rows: list[tuple[str, ...]] = [("name", found.name)]
    if model := catalog.find(name):
        rows += [
            ("title", model.title),
            ("family", model.family),
            ("parameters", f"{model.parameters:,}"),
            ("quantization", model.quantization),
            ("context", f"{model.context:,} tokens"),
            ("licence", model.license),
            ("sha256", model.sha256),
        ]
    size = found.path.stat().st_size if found.path else found.bytes
    rows += [("size", format_bytes(size) if size else "not known before it is fetched")]
    rows += [("file", str(found.path) if found.path else "not on this machine")]
    rows += [("source", str(source)) for source in found.sources]
    print_table(rows)
    return 0


def remove(name: str, catalog: Catalog, store: hub.Store) -> int:
    """Delete a model's file that Glasschat or the hub fetched. Other files are the person's own."""
    installed = hub.installed(catalog, store)
    path = Path(name).expanduser().absolute()
    model = next((model for model in installed if model.name == name or model.path == path), None)
    if model is None:
        here = ", ".join(model.name for model in installed) or "none"
        raise ModelNotFound(f"no fetched model is named {name!r}; on this machine there are: {here}")
    print(f"removed {model.name}, {format_bytes(hub.remove(model, store))} freed")
    return 0
