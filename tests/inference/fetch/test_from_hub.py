"""Fetching from a hub: whole, resumed, refused, damaged and cancelled downloads, and what each leaves behind."""

import errno
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.catalog import HubSource
from inference.errors import Cancelled, FetchFailed, ModelNotFound
from inference.fetch.from_hub import fetch_from_hub
from inference.fetch.hub_cache import find_in_hub_cache, hub_cache_files, remove_from_hub_cache
from inference.fetch.hub_worker import choose_gguf, explain
from inference.hub import Store

CONTENTS = os.urandom(2_000_000)
SOURCE = HubSource("org/repo", "tiny.gguf")


def fetch(
    source: HubSource, store: Store, sha256: str | None = None, progress=lambda *_: None, cancelled=lambda: False
):
    return fetch_from_hub(source, store.hub_cache, sha256, progress, cancelled)


def blobs(store: Store) -> list[Path]:
    return [path for path in store.hub_cache.rglob("blobs/*") if path.is_file()]


def test_a_whole_file_arrives_with_progress(hub, store) -> None:
    sha256 = hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.pause_s = 0.02
    seen: list[tuple[int, int]] = []
    path = fetch(SOURCE, store, sha256, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENTS
    done = [each for each, _ in seen]
    assert done == sorted(done) and done[-1] == len(CONTENTS)
    assert len({each for each in done if 0 < each < len(CONTENTS)}) >= 2, "progress between the ends"
    assert {total for _, total in seen} == {len(CONTENTS)}
    assert find_in_hub_cache(SOURCE, store.hub_cache) == path


def test_a_file_that_is_cached_is_not_downloaded_again(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    first = fetch(SOURCE, store)
    hub.requests.clear()
    assert fetch(SOURCE, store) == first
    assert not [request for request in hub.requests if request.startswith("GET /org")]


def test_a_connection_that_breaks_is_resumed(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.break_after = 1_500_000
    assert fetch(SOURCE, store).read_bytes() == CONTENTS
    assert len([request for request in hub.requests if request.startswith("GET /org")]) == 2


def test_a_connection_that_always_breaks_leaves_nothing(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.break_after = 0
    with pytest.raises(FetchFailed, match=r"could not be read \(.*\); check the network and try again"):
        fetch(SOURCE, store)
    assert blobs(store) == []


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (HubSource("org/none", "tiny.gguf"), ModelNotFound, "does not exist or is private"),
        (HubSource("org/none", None), ModelNotFound, "does not exist or is private"),
        (HubSource("org/repo", "none.gguf"), ModelNotFound, "has no file none.gguf"),
        (HubSource("org/text", None), ModelNotFound, "has no GGUF file in one piece"),
        (HubSource("org/gated", "tiny.gguf"), FetchFailed, "asks you to accept its terms"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(hub, store, source, kind, message) -> None:
    for repo in ("org/repo", "org/gated"):
        hub.put(repo, "tiny.gguf", CONTENTS)
    hub.put("org/text", "README.md", b"text")
    hub.gated.add("org/gated")
    with pytest.raises(kind) as caught:
        fetch(source, store)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert blobs(store) == []


def test_an_unreachable_hub_is_said_without_a_long_wait(store, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(FetchFailed, match=r"could not be read \(.*Connection refused\); check the network"):
        fetch(SOURCE, store)
    assert time.monotonic() - start < 10


def test_offline_mode_is_named(hub, store, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchFailed, match="HF_HUB_OFFLINE is set"):
        fetch(SOURCE, store)


@pytest.mark.parametrize("known", ["from the catalogue", "from the hub"])
def test_a_wrong_checksum_is_said_and_the_file_removed(hub, store, known) -> None:
    sha256 = hub.put("org/repo", "tiny.gguf", CONTENTS)
    expected = "e" * 64
    if known == "from the hub":
        hub.etags["org/repo/tiny.gguf"] = expected
    with pytest.raises(FetchFailed, match=f"SHA-256 {sha256}, expected {expected}; it was removed"):
        fetch(SOURCE, store, expected if known == "from the catalogue" else None)
    assert blobs(store) == [] and find_in_hub_cache(SOURCE, store.hub_cache) is None


def test_cancel_ends_a_download_soon_and_leaves_nothing(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.pause_s = 0.3  # nine seconds in all
    cancel = threading.Event()
    asked: list[float] = []

    def progress(done: int, _total: int) -> None:
        if done and not cancel.is_set():
            asked.append(time.monotonic())
            cancel.set()

    with pytest.raises(Cancelled):
        fetch(SOURCE, store, None, progress, cancel.is_set)
    assert time.monotonic() - asked[0] < 3
    assert blobs(store) == []
    hub.pause_s = 0
    assert fetch(SOURCE, store).read_bytes() == CONTENTS


def test_a_hub_that_never_answers_can_be_cancelled(store, monkeypatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(Cancelled):
            fetch(SOURCE, store, cancelled=lambda: time.monotonic() - start > 1)
        assert time.monotonic() - start < 4


def test_two_fetches_at_once_give_one_sound_file(hub, store) -> None:
    sha256 = hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.pause_s = 0.02
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(SOURCE, store, sha256), range(2)))
    assert paths[0] == paths[1]
    assert hashlib.sha256(paths[0].read_bytes()).hexdigest() == sha256
    assert len(blobs(store)) == 1


def test_an_unnamed_file_is_chosen_and_found_again_offline(hub, store) -> None:
    for file in ("model-Q8_0.gguf", "model-Q4_K_M.gguf", "README.md"):
        hub.put("org/repo", file, file.encode())
    source = HubSource("org/repo", None)
    path = fetch(source, store)
    assert path.name == "model-Q4_K_M.gguf"
    assert find_in_hub_cache(source, store.hub_cache) == path


def test_a_full_disk_is_said() -> None:
    refused = explain(OSError(errno.ENOSPC, "No space left on device"), {"cache": "/some/cache"})
    assert str(refused).startswith("filled the disk that holds /some/cache; nothing was kept")


def test_a_cache_that_cannot_be_written_is_said(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    store.hub_cache.parent.mkdir(exist_ok=True)
    store.hub_cache.write_text("in the way")
    with pytest.raises(FetchFailed, match=f"could not be written to {store.hub_cache}"):
        fetch(SOURCE, store)


def test_choose_gguf_prefers_small_whole_models() -> None:
    assert choose_gguf(["m-F16.gguf", "m.q8_0.gguf", "m-Q5_K_M.gguf"]) == "m-Q5_K_M.gguf"
    assert choose_gguf(["m-BF16.gguf", "m-F16.gguf"]) == "m-F16.gguf"
    assert choose_gguf(["mmproj-F16.gguf", "m-Q4_K_M-00001-of-00002.gguf", "config.json"]) is None
    assert choose_gguf(["b.gguf", "a.gguf"]) == "a.gguf"


def test_removing_keeps_what_other_files_need(hub, store) -> None:
    hub.put("org/repo", "a.gguf", b"a" * 100)
    hub.put("org/repo", "b.gguf", b"b" * 50)
    hub.put("org/repo", "copy-of-a.gguf", b"a" * 100)
    paths = {file: fetch(HubSource("org/repo", file), store) for file in ("a.gguf", "b.gguf", "copy-of-a.gguf")}
    assert [(each.file, each.bytes) for each in hub_cache_files(store.hub_cache)] == [
        ("a.gguf", 100),
        ("b.gguf", 50),
        ("copy-of-a.gguf", 100),
    ]
    assert remove_from_hub_cache(paths["a.gguf"], store.hub_cache) == 0, "its contents are still in use"
    assert paths["copy-of-a.gguf"].read_bytes() == b"a" * 100
    assert remove_from_hub_cache(paths["copy-of-a.gguf"], store.hub_cache) == 100
    assert remove_from_hub_cache(paths["b.gguf"], store.hub_cache) == 50
    assert hub_cache_files(store.hub_cache) == () and blobs(store) == []
