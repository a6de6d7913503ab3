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
from inference.fetch.hub_cache import cached_models, find_in_hub_cache, remove_from_hub_cache
from inference.fetch.hub_errors import explain
from inference.fetch.hub_worker import PROGRESS_BYTES
from inference.hub import Store

CONTENTS = os.urandom(2_000_000)
SOURCE = HubSource("org/repo", "tiny.gguf")


def fetch(
    source: HubSource,
    store: Store,
    sha256: str | None = None,
    progress=lambda *_: None,
    cancelled=lambda: False,
    notice=lambda _: None,
):
    return fetch_from_hub(source, store.hub_cache, sha256, progress, notice, cancelled)


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
    assert hub.downloads() == []


def test_a_connection_that_breaks_is_resumed_where_it_broke(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.break_after = 5 * PROGRESS_BYTES
    assert fetch(SOURCE, store).read_bytes() == CONTENTS
    assert hub.downloads() == [
        "GET /cdn/org/repo/tiny.gguf",
        f"GET /cdn/org/repo/tiny.gguf bytes={hub.break_after}-",
    ]


def test_a_connection_that_always_breaks_leaves_nothing(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.break_after = 0
    with pytest.raises(FetchFailed, match=r"could not be read \(.*\); check the network and try again"):
        fetch(SOURCE, store)
    assert blobs(store) == []


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (HubSource("org/none", "tiny.gguf"), ModelNotFound, "does not exist or is private: check its name, or log in"),
        (HubSource("org/repo", revision="v9"), ModelNotFound, "has no revision v9: check the branch, tag or commit"),
        (HubSource("org/repo", "none.gguf"), ModelNotFound, "has no whole none.gguf; it has tiny.gguf"),
        (HubSource("org/repo", quantization="Q2_K"), ModelNotFound, "has no whole Q2_K; it has tiny.gguf"),
        (HubSource("org/text"), ModelNotFound, "has no model that can be run: neither a GGUF, nor safetensors"),
        (HubSource("org/gated"), FetchFailed, "is gated: accept its licence on http://127.0.0.1:"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(hub, store, source, kind, message) -> None:
    for repo in ("org/repo", "org/gated"):
        hub.put(repo, "tiny.gguf", CONTENTS)
    hub.put("org/text", "README.md", b"text")
    hub.put("org/text", "pytorch_model.bin", b"a pickle")
    hub.gated.add("org/gated")
    with pytest.raises(kind) as caught:
        fetch(source, store)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert blobs(store) == [] and hub.downloads() == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "refused your login (HTTP status 401): log in again with `hf auth login`"),
        (429, "is being asked too often (HTTP status 429): try again in some minutes"),
        (503, "answered with HTTP status 503; try again later"),
    ],
)
def test_a_status_is_put_into_words_at_once(hub, store, status, message) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.status = status
    start = time.monotonic()
    # A login that the hub does not know: without one, 401 is its answer for a repository that does not exist.
    if status == 401:
        hub.refusal = "Invalid credentials in Authorization header"
    with pytest.raises(FetchFailed) as caught:
        fetch(SOURCE, store)
    assert str(caught.value).startswith(message)
    assert time.monotonic() - start < 5


def test_a_login_opens_a_gated_repository_and_stays_on_the_hub(hub, store, monkeypatch) -> None:
    hub.put("org/gated", "tiny.gguf", CONTENTS)
    hub.gated.add("org/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_not_accepted")
    with pytest.raises(FetchFailed, match=r"accept its licence on .*/org/gated, then log in"):
        fetch(HubSource("org/gated"), store)
    hub.gated.clear()
    assert fetch(HubSource("org/gated"), store).read_bytes() == CONTENTS
    assert any("/resolve/" in path for path in hub.authorised)
    assert not any(path.startswith("/cdn/") for path in hub.authorised)


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


PARTS = [f"sub/m-Q4_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_all_parts_of_a_split_file_come_on_one_bar_and_the_choice_is_said(hub, store) -> None:
    contents = {name: os.urandom(300_000 + index) for index, name in enumerate(PARTS)}
    for name, data in {**contents, "m-F16.gguf": b"x" * 50, "mmproj-m-Q4_K_M.gguf": b"y" * 60}.items():
        hub.put("org/repo", name, data)
    hub.pause_s = 0.01
    seen: list[tuple[int, int]] = []
    notices: list[str] = []
    source = HubSource("org/repo")
    path = fetch(source, store, None, lambda *each: seen.append(each), notice=notices.append)
    assert path.as_posix().endswith(f"/{PARTS[0]}") and find_in_hub_cache(source, store.hub_cache) == path
    assert [path.with_name(Path(name).name).read_bytes() for name in PARTS] == list(contents.values())
    assert {total for _, total in seen} == {900_003} and seen == sorted(seen) and seen[-1][0] == 900_003
    assert notices == [
        "org/repo: chose Q4_0, 3 files (1 MB) of 2 models; `chat models info org/repo` lists them",
    ]
    # Any part names all; one that is missing, here for lack of its contents, makes the model not installed.
    assert find_in_hub_cache(HubSource("org/repo", PARTS[2]), store.hub_cache) == path
    path.with_name(Path(PARTS[1]).name).resolve().unlink()
    assert find_in_hub_cache(source, store.hub_cache) is None
    hub.requests.clear()
    assert fetch(source, store) == path, "only what is missing is fetched again"
    assert hub.downloads() == [f"GET /cdn/org/repo/{PARTS[1]}"]


SAFETENSORS = {
    "config.json": b"{}",
    "tokenizer.json": b"t" * 1000,
    "tokenizer_config.json": b"{1}",
    "chat_template.jinja": b"{2}",
    "model.safetensors.index.json": b"{3}",
    "model-00001-of-00002.safetensors": b"1" * 2000,
    "model-00002-of-00002.safetensors": b"2" * 3000,
}


def test_a_safetensors_model_is_a_folder_of_what_it_needs(hub, store, files_below) -> None:
    others = ("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "tokenizer.model", "m.pt")
    for name, data in {**SAFETENSORS, **dict.fromkeys(others, b"not needed")}.items():
        hub.put("org/repo", name, data)
    source = HubSource("org/repo")
    folder = fetch(source, store)
    assert folder.is_dir() and files_below(folder) == sorted(SAFETENSORS)
    assert all((folder / name).read_bytes() == data for name, data in SAFETENSORS.items())
    assert find_in_hub_cache(source, store.hub_cache) == folder
    (model,) = cached_models(store.hub_cache)
    assert (model.choice.name, model.choice.bytes, model.path) == (
        "org/repo:safetensors",
        sum(map(len, SAFETENSORS.values())),
        folder,
    )
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert find_in_hub_cache(source, store.hub_cache) is None and cached_models(store.hub_cache) == ()


def test_a_cancel_between_files_keeps_the_whole_ones_and_the_next_fetch_goes_on(hub, store) -> None:
    for name, data in SAFETENSORS.items():
        hub.put("org/repo", name, data)
    hub.pause_s = 0.5
    with pytest.raises(Cancelled):
        # Before the fourth file sends anything, those before it are whole.
        fetch(HubSource("org/repo"), store, None, lambda *_: None, lambda: len(hub.downloads()) >= 4)
    assert find_in_hub_cache(HubSource("org/repo"), store.hub_cache) is None
    assert not [path for path in blobs(store) if path.name.endswith(".incomplete")]
    hub.pause_s, before = 0, set(hub.downloads())
    hub.requests.clear()
    fetch(HubSource("org/repo"), store)
    assert "GET /cdn/org/repo/tokenizer.json" in before - set(hub.downloads())


def test_a_revision_is_pinned(hub, store) -> None:
    hub.tags["org/repo@v1"] = "a" * 40
    hub.put("org/repo", "tiny.gguf", b"old contents")
    old = fetch(HubSource("org/repo", revision="v1"), store)
    assert find_in_hub_cache(HubSource("org/repo"), store.hub_cache) is None, "v1 is not main"
    hub.put("org/repo", "tiny.gguf", b"new contents")
    new = fetch(HubSource("org/repo"), store)
    assert (old.read_bytes(), new.read_bytes()) == (b"old contents", b"new contents")
    # The branch goes on; what it stood for stays, under its commit.
    hub.commits["org/repo"] = "d" * 40
    hub.put("org/repo", "tiny-Q8_0.gguf", b"eight bits")
    fetch(HubSource("org/repo", "tiny-Q8_0.gguf"), store)
    assert [model.choice.name for model in cached_models(store.hub_cache)] == [
        "org/repo/tiny-Q8_0.gguf",
        "org/repo/tiny.gguf@v1",
        f"org/repo/tiny.gguf@{'c' * 40}",
    ]
    assert find_in_hub_cache(HubSource("org/repo", revision="c" * 40), store.hub_cache) == new


def test_what_a_killed_download_left_is_removed_and_said(hub, store) -> None:
    sha256 = hub.put("org/repo", "tiny.gguf", CONTENTS)
    folder = store.hub_cache / "models--org--repo" / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{sha256}.0123abcd.incomplete").write_bytes(bytes(3_000_000))
    notices: list[str] = []
    fetch(SOURCE, store, notice=notices.append)
    assert notices == ["org/repo: 3 MB of an unfinished download were removed; that file starts again"]
    assert [path.name for path in blobs(store)] == [sha256]


def test_too_little_room_is_said_before_anything_is_fetched(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    hub.sizes["org/repo/tiny.gguf"] = 10**18
    with pytest.raises(FetchFailed, match=r"needs 1,000,000,000,000 MB in .*hub, where .* are free; free some space"):
        fetch(SOURCE, store)
    assert hub.downloads() == []


def test_a_full_disk_is_said() -> None:
    refused = explain(OSError(errno.ENOSPC, "No space left on device"), {"cache": "/some/cache"})
    assert str(refused).startswith("filled the disk that holds /some/cache; no part of a file was kept")


def test_a_cache_that_cannot_be_written_is_said(hub, store) -> None:
    hub.put("org/repo", "tiny.gguf", CONTENTS)
    store.hub_cache.parent.mkdir(exist_ok=True)
    store.hub_cache.write_text("in the way")
    with pytest.raises(FetchFailed, match=f"could not be written to {store.hub_cache}"):
        fetch(SOURCE, store)


def test_removing_keeps_what_other_files_need(hub, store) -> None:
    for file, contents in (("a.gguf", b"a" * 100), ("b.gguf", b"b" * 50), ("copy-of-a.gguf", b"a" * 100)):
        hub.put("org/repo", file, contents)
        fetch(HubSource("org/repo", file), store)
    models = cached_models(store.hub_cache)
    a, b, copy = models
    assert [(each.choice.name, each.choice.bytes) for each in models] == [
        ("org/repo/a.gguf", 100),
        ("org/repo/b.gguf", 50),
        ("org/repo/copy-of-a.gguf", 100),
    ]
    assert remove_from_hub_cache(a, store.hub_cache) == 0, "its contents are still in use"
    assert copy.path.read_bytes() == b"a" * 100
    assert remove_from_hub_cache(copy, store.hub_cache) == 100
    assert remove_from_hub_cache(b, store.hub_cache) == 50
    assert cached_models(store.hub_cache) == () and blobs(store) == []
