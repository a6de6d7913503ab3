"""`chat models`: list, pull, info and rm."""

from __future__ import annotations

from pathlib import Path

from app.fit_report import fit_rows
from app.model_list import model_entries, resolve_model
from app.options import EngineOptions
from app.terminal import ProgressLine, print_table
from app.units import format_bytes
from inference import hub
from inference.catalog import Catalog, HubSource
from inference.errors import GlasschatError, ModelNotFound
from inference.fetch.choices import Choice, choose

Rows = list[tuple[str, str]]


def show_list(catalog: Catalog, store: hub.Store) -> int:
    """The models on this machine and those of the catalogue."""
    rows: list[tuple[str, ...]] = [("NAME", "SIZE", "CONTEXT", "LICENCE", "WHERE")]
    for entry in model_entries(catalog, store):
        where = str(entry.path) if entry.path else "to fetch" + (", the starter" if entry.starter else "")
        rows.append((entry.name, format_bytes(entry.bytes), str(entry.context or "-"), entry.license or "-", where))
    print_table(rows)
    return 0


def pull(name: str, catalog: Catalog, store: hub.Store) -> int:
    """Fetch a model; prints the path of its file, or of its folder."""
    progress = ProgressLine()
    try:
        path = resolve_model(name, progress, lambda: False, catalog=catalog, store=store)
    finally:
        progress.wipe()
    print(path)
    return 0


def info(name: str, catalog: Catalog, store: hub.Store, options: EngineOptions | None = None) -> int:
    """What is known of a model without loading it; of one on the hub, what else its repository holds.

    Of a model on this machine, whether it fits when it is opened with `options`.
    """
    found = hub.resolve(name, catalog, store)
    rows: Rows = [("name", found.name)]
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
    source = next((source for source in found.sources if isinstance(source, HubSource)), None)
    asked = _ask_hub(found, source) if source and model is None else []
    if found.path:
        files = hub.files_of(found.path)
        sizes = [file.stat().st_size for file in files]
        rows += [("size", format_bytes(sum(sizes))), ("location", str(found.path))]
        rows += [("file", f"{file.name}, {format_bytes(size)}") for file, size in zip(files, sizes, strict=True)]
        if model is None and not any(key == "licence" for key, _ in asked):
            asked = _own_licence(found.path) + asked
    elif found.bytes:
        rows += [("size", format_bytes(found.bytes)), ("location", "not on this machine")]
    rows += [("source", str(each)) for each in found.sources]
    if found.path:
        rows += [("stops", _stops(found.path))]
        rows += fit_rows(found.path, options or EngineOptions())
    print_table(rows + asked)
    return 0


def remove(name: str, catalog: Catalog, store: hub.Store) -> int:
    """Delete the files of a model that Glasschat or the hub fetched. Other files are the person's own."""
    model = _installed_model(name, catalog, store)
    print(f"removed {model.name}, {format_bytes(hub.remove(model, store))} freed")
    return 0


def _ask_hub(found: hub.ResolvedModel, source: HubSource) -> Rows:
    """The licence and the choices of the source's repository. Where the hub does not answer, that is an error only for
    a model that is not on this machine."""
    try:
        repository = hub.repository(found.name)
        chosen = choose(repository.choices, source.file, source.quantization)
    except LookupError as error:
        raise ModelNotFound(f"{source} {error}") from error
    except GlasschatError as error:
        if found.path is None:
            raise
        return [("choices", f"not known: {error}")]
    rows: Rows = [("licence", repository.license or "none is named")]
    if found.path is None:
        rows += [("size", format_bytes(chosen.bytes)), ("location", "not on this machine")]
    return rows + [("choice", _describe(choice, choice == chosen)) for choice in repository.choices]


def _own_licence(path: Path) -> Rows:
    """What a GGUF file itself says."""
    from inference.formats.gguf import open_gguf

    try:
        licence = open_gguf(path).metadata.get("general.license") if path.is_file() else None
    except GlasschatError:
        licence = None
    return [("licence", str(licence))] if licence else []


def _stops(path: Path) -> str:
    """The tokens at which its replies end, and what names them."""
    from inference.loading import read_text
    from inference.model_files import open_files
    from inference.stop_tokens import describe_stops

    try:
        return describe_stops(read_text(open_files(path)).tokenizer.vocabulary.stops)
    except GlasschatError as error:
        return f"not known: {error}"


def _describe(choice: Choice, chosen: bool) -> str:
    parts = f" in {len(choice.files)} files" if len(choice.files) > 1 else ""
    return f"{choice.name}, {format_bytes(choice.bytes)}{parts}" + (", the one that this name means" if chosen else "")


def _installed_model(name: str, catalog: Catalog, store: hub.Store) -> hub.InstalledModel:
    """The one fetched model that the name stands for. Raises ModelNotFound where there is none, or more than one."""
    installed = hub.installed(catalog, store)
    source, path = hub.hub_source(name), Path(name).expanduser().absolute()
    if source and not source.file and not source.quantization:
        of_repo = [model.name for model in installed if model.cached and _is_of(model.cached.choice.name, source)]
        if len(of_repo) > 1:
            raise ModelNotFound(f"{name} stands for {len(of_repo)} fetched models; name one: {', '.join(of_repo)}")
    try:
        resolved = hub.resolve(name, catalog, store).path
    except ModelNotFound:
        resolved = None
    for model in installed:
        if model.name == name or model.path in (path, resolved):
            return model
    here = ", ".join(model.name for model in installed) or "none"
    raise ModelNotFound(f"no fetched model is named {name!r}; on this machine there are: {here}")


def _is_of(name: str, source: HubSource) -> bool:
    other = hub.hub_source(name)
    return other is not None and (other.repo, other.revision) == (source.repo, source.revision)
