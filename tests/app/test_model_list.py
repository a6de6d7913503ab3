from __future__ import annotations

from pathlib import Path

import pytest

from app.model_list import model_entries, resolve_usable_model
from inference.catalog import load_catalog
from inference.errors import BadModelFile, ModelNotFound
from inference.fit import Fit
from inference.hub import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "hub")


def install(store: Store, name: str) -> Path:
    """A file of the right size under a catalogue model's name."""
    model = load_catalog().get(name)
    path = store.folder / model.file
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(model.bytes)
    return path


def test_models_on_this_machine_come_first(store: Store) -> None:
    catalog = load_catalog()
    path = install(store, catalog.models[2].name)
    entries = model_entries(catalog, store)
    assert (entries[0].name, entries[0].path) == (catalog.models[2].name, path)
    assert [entry.name for entry in entries if entry.starter] == [catalog.starter]
    assert len(entries) == len(catalog.models)
    assert all(entry.fit == Fit() for entry in entries)


def test_the_fit_is_for_the_device_in_use(store: Store) -> None:
    catalog = load_catalog()
    install(store, catalog.models[2].name)
    here, *entries = model_entries(catalog, store, "cpu")
    assert here.fit == Fit(), "its file tells, when it is asked"
    assert [entry.fit.needed for entry in entries] == [
        4 * model.parameters for model in catalog.models if model.name != here.name
    ]
    assert all(entry.fit.fits is None for entry in model_entries(catalog, store, "webgpu"))


def test_a_file_that_is_no_model_is_refused_before_anything_is_closed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(BadModelFile, match=r"text\.gguf"):
        resolve_usable_model(
            str(tmp_path / "text.gguf"), "auto", print, lambda: False, catalog=load_catalog(), store=store
        )
    with pytest.raises(ModelNotFound):
        resolve_usable_model("nothing", "auto", print, lambda: False, catalog=load_catalog(), store=store)


def test_a_readable_model_is_found(store: Store, smollm2_path: Path) -> None:
    found = resolve_usable_model(str(smollm2_path), "auto", print, lambda: False, catalog=load_catalog(), store=store)
    assert found == str(smollm2_path)
