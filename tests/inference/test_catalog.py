"""The catalogue: what ships is sound, and a bad file is refused on one line that names the place."""

from pathlib import Path

import pytest

from inference.catalog import HubSource, PackageSource, load_catalog
from inference.errors import BadCatalog, ModelNotFound
from inference.models.families import HF_FAMILIES

GOOD = """
starter = "small"
[[model]]
name = "small"
title = "Small"
family = "llama"
parameters = 10
quantization = "Q8_0"
context = 64
license = "MIT"
file = "small.gguf"
bytes = 100
sha256 = "{sha}"
[[model.source]]
repo = "some/repo"
""".format(sha="ab" * 32)


def test_shipped_catalog_names_only_models_that_can_run() -> None:
    catalog = load_catalog()
    starter = catalog.get(catalog.starter)
    assert [type(source) for source in starter.sources] == [HubSource, PackageSource]
    assert {model.family for model in catalog.models} <= HF_FAMILIES.keys()
    assert len(catalog.models) >= 15
    for model in catalog.models:
        assert model.parameters < 8.1e9
        assert model.context >= 2048
        # A 4- to 8-bit file of so many weights cannot be smaller than 4 bits or larger than 10 bits a weight.
        assert 4 < model.bytes * 8 / model.parameters < 10, model.name
        assert all(source.file == model.file for source in model.sources if isinstance(source, HubSource))


def test_starter_is_the_file_that_the_tests_run(smollm2_path: Path) -> None:
    catalog = load_catalog()
    starter = catalog.get(catalog.starter)
    assert (starter.file, starter.bytes) == (smollm2_path.name, smollm2_path.stat().st_size)


def test_find_ignores_case_and_get_names_what_exists() -> None:
    catalog = load_catalog()
    assert catalog.get("SmolLM2-135M-Instruct").name == "smollm2-135m-instruct"
    assert catalog.find("nothing") is None
    with pytest.raises(ModelNotFound, match=r"no model named 'nothing'.*smollm2-135m-instruct, "):
        catalog.get("nothing")


def test_every_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(GOOD + 'revision = "abc"\n[[model.source]]\npackage = "p==1"\nmember = "p/m.gguf"\nbytes = 7\n')
    (model,) = load_catalog(path).models
    assert (model.name, model.title, model.family, model.license) == ("small", "Small", "llama", "MIT")
    assert (model.parameters, model.context, model.bytes, model.sha256) == (10, 64, 100, "ab" * 32)
    assert model.sources == (HubSource("some/repo", "small.gguf", "abc"), PackageSource("p==1", "p/m.gguf", 7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("starter = ", "cannot be read as a catalogue"),
        ("", "model is nothing, expected list"),
        (GOOD.replace("bytes = 100", 'bytes = "100"'), "model 1 (small): bytes is str '100', expected int"),
        (GOOD.replace("context = 64\n", ""), "model 1 (small): context is nothing, expected int"),
        (GOOD.replace('repo = "some/repo"', ""), "model 1 (small), source: repo is nothing, expected str"),
        (GOOD.replace("[[model.source]]", "[[model.sauce]]"), "model 1 (small): source is nothing, expected list"),
        (GOOD.replace("ab" * 32, "ab"), "sha256 is 'ab', expected 64 lower-case hexadecimal digits"),
        (GOOD.replace("small.gguf", "../small.gguf"), "file is '../small.gguf', expected a plain file name"),
        (GOOD.replace('starter = "small"', 'starter = "large"'), "the starter 'large' is not one of its models: small"),
        (GOOD + GOOD.partition("\n")[2].partition("\n")[2], "two models are named 'small'"),
        ('starter = "small"\nmodel = [1]', "model 1: found int, expected a table"),
    ],
)
def test_a_bad_file_is_refused_on_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(text)
    with pytest.raises(BadCatalog) as caught:
        load_catalog(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCatalog, match="No such file"):
        load_catalog(tmp_path / "none.toml")
