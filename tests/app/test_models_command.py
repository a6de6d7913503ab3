"""`chat models` with the hub's names: what it prints, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import models_command
from inference.catalog import load_catalog
from inference.errors import FetchFailed, ModelNotFound
from inference.hub import Store
from tests.fake_hub import FakeHub, running_hub

CATALOG = load_catalog()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub(monkeypatch, tmp_path / "home") as hub:
        for name, size in (("m-Q4_0.gguf", 2048), ("m-Q8_0-00001-of-00002.gguf", 3072)):
            hub.put("org/repo", name, b"x" * size)
        hub.put("org/repo", "m-Q8_0-00002-of-00002.gguf", b"y" * 1024)
        hub.licenses["org/repo"] = "apache-2.0"
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "own", tmp_path / "hub")


def test_a_model_is_looked_at_pulled_listed_and_removed(
    hub: FakeHub, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(action: str, *names: str) -> str:
        command = {
            "list": models_command.show_list,
            "pull": models_command.pull,
            "info": models_command.info,
            "rm": models_command.remove,
        }[action]
        assert command(*names, CATALOG, store) == 0
        return capsys.readouterr().out

    before = said("info", "org/repo:q8_0")
    for line in ("licence   apache-2.0", "size      4.0 KiB", "location  not on this machine"):
        assert line in before
    assert "choice    org/repo/m-Q4_0.gguf, 2.0 KiB\n" in before
    split = "org/repo/m-Q8_0-00001-of-00002.gguf"
    assert f"choice    {split}, 4.0 KiB in 2 files, the one that this name means\n" in before

    path = Path(said("pull", "org/repo:q8_0").strip())
    assert path.name == "m-Q8_0-00001-of-00002.gguf" and path.is_file()
    assert said("pull", "org/repo").strip() == str(path), "what is here of a repository will do"
    said("pull", "org/repo:Q4_0")
    here = [line.split() for line in said("list").splitlines() if line.startswith("org/")]
    assert [(line[0], line[1], line[-1]) for line in here] == [
        ("org/repo/m-Q4_0.gguf", "2.0", str(path.with_name("m-Q4_0.gguf"))),
        (split, "4.0", str(path)),
    ]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = said("info", "org/repo:q8_0")
    assert "file      m-Q8_0-00002-of-00002.gguf, 1.0 KiB\n" in offline and f"location  {path}\n" in offline
    assert "choices   not known: Hugging Face org/repo was not asked, because HF_HUB_OFFLINE is set" in offline
    with pytest.raises(ModelNotFound, match=f"org/repo stands for 2 fetched models; name one: .*, {split}"):
        models_command.remove("org/repo", CATALOG, store)
    assert said("rm", "org/repo:Q8_0") == f"removed {split}, 4.0 KiB freed\n"
    assert said("rm", "org/repo") == "removed org/repo/m-Q4_0.gguf, 2.0 KiB freed\n"
    assert "org/" not in said("list")


def test_what_cannot_be_told_or_removed_is_an_error(hub: FakeHub, store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="Hugging Face org/repo has no whole Q2_K; it has m-Q4_0"):
        models_command.info("org/repo:Q2_K", CATALOG, store)
    hub.status = 503
    with pytest.raises(FetchFailed, match="org/repo answered with HTTP status 503"):
        models_command.info("org/repo", CATALOG, store)
    own = tmp_path / "mine.gguf"
    own.write_bytes(b"mine")
    for name in (str(own), "org/repo", "nothing"):
        with pytest.raises(ModelNotFound, match=r"no fetched model is named .*; on this machine there are: none"):
            models_command.remove(name, CATALOG, store)
    assert own.exists()
