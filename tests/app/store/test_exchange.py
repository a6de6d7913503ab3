"""Export and import: what goes out comes back, and a bad file changes nothing."""

from __future__ import annotations

import base64
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from app.store.exchange import from_json, to_json, to_markdown, write_export
from app.store.records import HistoryError, Message, StoredConversation
from app.store.schema import to_blob
from app.store.store import Store
from tests.app.store.test_store import HOSTILE, ask


def conversation(*texts: str) -> StoredConversation:
    """One branch of alternating messages."""
    messages = tuple(
        Message(id, id - 1 or None, ("assistant", "user")[id % 2], text, 1e9 + id, ("stop", "sent")[id % 2], "tiny")
        for id, text in enumerate(texts, 1)
    )
    return StoredConversation("A title", "Be brief.", len(messages), messages)


def exported() -> dict[str, Any]:
    """A good file, as data to be spoiled."""
    document: dict[str, Any] = json.loads(to_json(conversation("one", "two", "three")))
    return document


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_json_is_exact_and_always_valid(text: str) -> None:
    before = StoredConversation(text, text, 1, (Message(1, None, "user", text, 0.1, None, text, {"a": [1.5]}),))
    data = to_json(before)
    assert from_json(data) == before
    written = json.loads(data.decode("utf-8"))["messages"][0]["text"]
    assert written == (text if "\ud800" not in text else {"base64": base64.b64encode(to_blob(text)).decode()})


async def test_a_tree_goes_through_a_file(store: Store, tmp_path: Path) -> None:
    tree = store.new("Be brief.")
    ask(tree, "one", "1")
    edited = tree.add("user", "other one", None)
    tree.add("assistant", "not fin", edited.id)
    tree.show(tree.siblings(edited.id)[0])
    await store.export(tree.id, tmp_path / "a.json")
    id = await store.import_json(tmp_path / "a.json")
    assert id != tree.id
    await store.export(id, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    copy = await store.open(id)
    assert [message.text for message in await store.messages(copy, [node.id for node in copy.path()])] == ["one", "1"]
    assert len(await store.conversations()) == 2
    assert len(await store.search("other")) == 2


def test_markdown_shows_the_branch_with_roles_as_headings() -> None:
    stopped = "```python\nprint(1)\n"
    text = to_markdown(conversation("Hi\x1b[1m", stopped, "~~~\n```\n~~~ x\n~~~", "a ``` b")).decode()
    assert text.startswith("# A title\n\n## System\n\nBe brief.\n\n## User\n\nHi\x1b[1m\n\n## Assistant (tiny)\n\n")
    assert f"{stopped}\n```\n\n## User\n\n~~~\n```\n~~~ x\n~~~\n\n## Assistant (tiny)\n\na ``` b\n" in text


def spoil(*path: str | int, value: Any) -> dict[str, Any]:
    """A good file with one value changed; `...` removes it."""
    document = exported()
    table: Any = document
    for key in path[:-1]:
        table = table[key]
    if value is ...:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    return document


BAD: list[tuple[Any, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"\xff\xfe", "not UTF-8 at byte 0"),
    (json.dumps(exported()).replace("three", "\ud800").encode("utf-8", "surrogatepass"), "not UTF-8"),
    (json.dumps(exported()).replace("1000000001.0", "9" * 5000).encode(), "not JSON"),
    (json.dumps(exported()).replace("1000000001.0", "NaN").encode(), "NaN"),
    (json.dumps(exported()).replace("1000000001.0", "1e999").encode(), "message 1, created is Infinity"),
    (json.dumps(exported()).replace("{}", '{"a": 1e999}').encode(), "message 1, settings"),
    ([], "not an exported conversation"),
    (spoil("format", value="x"), "not an exported conversation"),
    (spoil("version", value=2), "version is 2"),
    (spoil("version", value=True), "version is true"),
    (spoil("version", value=...), "version is null"),
    (spoil("title", value=...), "lacks title"),
    (spoil("extra", value=1), "extra"),
    (spoil("title", value=None), "title is null"),
    (spoil("system", value={"base64": "?"}), "system"),
    (spoil("system", value={"base64": base64.b64encode(b"\xff").decode()}), "system"),
    (spoil("active", value=9), "active is 9"),
    (spoil("active", value=True), "active is true"),
    (spoil("messages", value=[]), "messages is a list of 0"),
    (spoil("messages", value={}), "messages is an object"),
    (spoil("messages", 1, value="x" * 1000), "message 2 is "),
    (spoil("messages", 1, "text", value=...), "message 2 lacks text"),
    (spoil("messages", 1, "text", value=["\x1b[2J"]), "message 2, text"),
    (spoil("messages", 1, "role", value="\x1b[2J\n\ud800"), "message 2, role"),
    (spoil("messages", 1, "id", value=1), "message 2, id is 1"),
    (spoil("messages", 1, "id", value=10**4000), "message 3, parent is 2"),
    (spoil("messages", 1, "parent", value=2), "message 2, parent is 2"),
    (spoil("messages", 1, "parent", value=3), "message 2, parent is 3"),
    (spoil("messages", 1, "parent", value=10**4000), "message 2, parent is a number of many digits"),
    (spoil("messages", 1, "parent", value=[]), "message 2, parent"),
    (spoil("messages", 1, "created", value="now"), "message 2, created"),
    (spoil("messages", 1, "created", value=-1), "message 2, created"),
    (spoil("messages", 1, "finish_reason", value=""), "message 2, finish_reason"),
    (spoil("messages", 1, "settings", value=[]), "message 2, settings"),
    (spoil("messages", 1, "model", value=7), "message 2, model is 7"),
]


@pytest.mark.parametrize(("bad", "expected"), BAD, ids=range(len(BAD)))
async def test_a_bad_file_gets_one_line_and_changes_nothing(
    store: Store, tmp_path: Path, bad: Any, expected: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(bad if isinstance(bad, bytes) else json.dumps(bad).encode())
    with pytest.raises(HistoryError) as caught:
        await store.import_json(file)
    message = str(caught.value)
    assert expected in message and str(file) in message
    assert message.isprintable() and len(message) < 400
    assert await store.conversations() == ()


async def test_what_is_no_file_or_too_large_is_refused(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name, expected in (("fifo", "no file"), ("huge", "256 MiB"), ("none", "No such file"), (".", "no file")):
        with pytest.raises(HistoryError, match=expected):
            await store.import_json(tmp_path / name)


async def test_a_file_that_is_there_stays(store: Store, tmp_path: Path) -> None:
    ask(tree := store.new(), "one")
    (tmp_path / "a.md").write_text("mine")
    for name, expected in (
        ("a.md", "there already"),
        ("a.txt", "ends with"),
        ("no/a.md", "No such file"),
        ("\0.md", "could not be exported"),
    ):
        with pytest.raises(HistoryError, match=expected):
            await store.export(tree.id, tmp_path / name)
    assert (tmp_path / "a.md").read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["a.md"]


def test_an_export_that_does_not_fit_leaves_no_half(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(HistoryError, match="could not be exported"):
            write_export(conversation("x" * 300_000), tmp_path / "a.md")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
