"""Adapters by name: from the hub into its cache, from the cache without a network, and paths in whatever form."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference import Engine
from inference.errors import BadAdapter, Cancelled, FetchFailed, ModelNotFound
from inference.events import Loading, Notice
from inference.hub import Store, fetch, installed, resolve_adapter
from tests.fake_hub import FakeHub, running_hub
from tests.inference.tiny_golden import folder

LORA = folder("qwen3") / "lora"
IDS = list(range(5, 25))


def put(hub: FakeHub, repo: str, source: Path) -> None:
    for file in source.iterdir():
        hub.put(repo, file.name, file.read_bytes())
    hub.put(repo, "README.md", b"not needed" * 10)


@pytest.fixture
def cached_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with two adapters; engines in this process keep what they fetch from it in `tmp_path`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf-home" / "hub"))
    with running_hub(monkeypatch, tmp_path / "hf-home") as hub:
        put(hub, "org/one", LORA / "adapter1")
        put(hub, "org/two", LORA / "adapter2")
        hub.tags["org/two@v1"] = "d" * 40
        yield hub


def test_an_engine_takes_adapters_from_the_hub_and_then_from_its_cache(
    cached_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Loading | Notice] = []
    engine = Engine.open(folder("qwen3"), device="cpu", loras=[("org/one", 0.5)], progress=heard.append)
    assert [each.adapter.name for each in engine.adapters.applied] == ["org/one"]
    stages = [event.stage for event in heard if isinstance(event, Loading)]
    assert "fetching org/one from Hugging Face org/one" in stages
    from_hub = engine.logits(IDS)
    assert not any("README" in request for request in cached_hub.downloads())

    engine.set_loras([(LORA / "adapter1", 0.5)])
    assert np.array_equal(engine.logits(IDS), from_hub)

    cached_hub.status = 503
    cached_hub.requests.clear()
    engine.set_loras([("org/one", 0.5)])
    assert np.array_equal(engine.logits(IDS), from_hub) and cached_hub.requests == []
    held = engine.adapters
    with pytest.raises(FetchFailed, match=r"org/two@v1 could not be fetched: .* answered with HTTP status 503"):
        engine.set_loras([("org/one", 0.5), ("org/two@v1", 1)])
    assert engine.adapters is held

    cached_hub.status = None
    engine.set_loras([("org/one", 0.5), ("org/two@v1", 1)])
    assert [each.adapter.name for each in engine.adapters.applied] == ["org/one", "org/two"]
    assert engine.adapters.applied[0].adapter is held.applied[0].adapter, "it is not read again"
    engine.close()


def test_a_fetch_stops_when_progress_raises(cached_hub: FakeHub) -> None:
    def stop(event: Loading | Notice) -> None:
        raise Cancelled("enough")

    engine = Engine.open(folder("qwen3"), device="cpu")
    with pytest.raises(Cancelled, match="enough"):
        engine.set_loras([("org/one", 1)], stop)
    assert not engine.adapters.applied
    engine.close()


def test_a_gguf_adapter_from_the_hub_is_a_file_and_no_model(hub: FakeHub, store: Store) -> None:
    from inference.catalog import Catalog

    hub.put("org/repo", "pirate-F16-LoRA.gguf", b"GGUF" * 100)
    path = fetch(resolve_adapter("org/repo", store), store)
    assert path.name == "pirate-F16-LoRA.gguf" and resolve_adapter("org/repo", store).path == path
    assert installed(Catalog((), ""), store) == ()


def test_a_repository_without_adapter_is_refused_before_anything_is_fetched(hub: FakeHub, store: Store) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        hub.put("org/model", name, b"x" * 100)
    with pytest.raises(ModelNotFound, match="org/model has no adapter: neither adapter_config"):
        fetch(resolve_adapter("org/model", store), store)
    assert hub.downloads() == []


def test_a_path_may_be_relative_or_name_a_file_of_the_folder(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    one = LORA / "adapter1"
    monkeypatch.chdir(one)
    monkeypatch.setenv("HOME", str(LORA))
    names = (".", "../adapter1/", "~/adapter1", "adapter_config.json", str(one / "adapter_model.safetensors"))
    assert {resolve_adapter(name, store).path for name in names} == {Path(os.path.abspath(one))}


@pytest.mark.parametrize("name", ["", "nothing", "~nobody/x", "a\0b", "x" * 9999, "../up"])
def test_a_name_that_means_nothing_is_refused_with_help(name: str, store: Store) -> None:
    with pytest.raises(BadAdapter, match=r"no such file or folder; name a PEFT folder, .* org/repo@revision"):
        resolve_adapter(name, store)
