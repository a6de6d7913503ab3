"""A file that cannot be used: it is said, the chat goes on in memory, and is saved when that works again."""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from app.store import schema
from app.store import store as store_module
from app.store.records import HistoryError
from app.store.store import Store
from tests.app.store.test_store import ask, texts, titles

MakeStore = Callable[[], Store]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for other programs and trying again take a moment only."""
    monkeypatch.setattr(schema, "_BUSY_S", 0.01)
    monkeypatch.setattr(store_module, "_RETRY_S", 0.05)


async def notices(store: Store, count: int) -> list[str]:
    """The next `count` notices."""
    found: list[str] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += store.drain()
            await asyncio.sleep(0.005)
    return found


async def test_a_locked_file_is_written_when_it_is_free(store: Store, path: Path, tmp_path: Path) -> None:
    tree = store.new()
    ask(tree, "before", "1")
    assert await titles(store) == ["before"]
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    ask(tree, "while locked", "2")
    new = store.new()
    ask(new, "new one", "3")
    (notice,) = await notices(store, 1)
    assert str(path) in notice and "locked" in notice and "in memory" in notice and notice.isprintable()
    await asyncio.sleep(0.2)
    assert store.drain() == []  # said once
    assert await titles(store) == ["before"]
    assert await store.open(tree.id) is tree
    assert await texts(store, tree) == ["before", "1", "while locked", "2"]
    for each, count in ((tree, 4), (new, 2)):
        await store.export(each.id, tmp_path / f"{count}.json")
        assert len(json.loads((tmp_path / f"{count}.json").read_text())["messages"]) == count
    with pytest.raises(HistoryError, match="locked"):
        await store.import_json(tmp_path / "2.json")
    other.rollback()
    other.close()
    assert await notices(store, 1) == ["The history is saved again."]
    assert await titles(store) == ["new one", "before"]
    again = await store.open(tree.id)
    assert again is not tree
    assert await texts(store, again) == ["before", "1", "while locked", "2"]


async def test_a_full_disk_loses_nothing(store: Store, path: Path) -> None:
    tree = store.new()
    ask(tree, "before", "1")
    assert await titles(store) == ["before"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name(path.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, limits[1]))
    try:
        ask(tree, "while full", "x" * 200_000)
        (notice,) = await notices(store, 1)
        assert str(path) in notice and "in memory" in notice
        ask(tree, "later", "2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await notices(store, 1) == ["The history is saved again."]
    again = await store.open(tree.id)
    assert await texts(store, again) == ["before", "1", "while full", "x" * 200_000, "later", "2"]
    assert again is not tree


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be looked at " * 100)


def other_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()


def newer(path: Path) -> None:
    schema.connect(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def damaged(path: Path) -> None:
    schema.connect(path).close()
    data = bytearray(path.read_bytes())
    data[5000:] = b"\xaa" * (len(data) - 5000)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (no_database, "not a database"),
        (other_program, "another program"),
        (newer, "version 99"),
        (damaged, "malformed"),
        (Path.mkdir, "directory"),
    ],
)
async def test_a_file_that_cannot_be_used_stays_as_it_is(
    make_store: MakeStore, path: Path, spoil: Callable[[Path], None], expected: str
) -> None:
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    store = make_store()
    with pytest.raises(HistoryError, match=expected) as caught:
        await store.conversations()
    assert str(path) in str(caught.value)
    tree = store.new()
    reply = ask(tree, "I go on", "1")
    (notice,) = await notices(store, 1)
    assert expected in notice and str(path) in notice and notice.isprintable()
    assert await texts(store, await store.open(tree.id)) == ["I go on", "1"]
    assert tree.active == reply
    assert "lacks the newest changes, with 2 messages" in store.close()
    assert (path.read_bytes() if path.is_file() else b"") == before


async def test_moving_a_bad_file_away_is_enough(make_store: MakeStore, path: Path) -> None:
    path.parent.mkdir()
    other_program(path)
    store = make_store()
    ask(store.new(), "I go on")
    await notices(store, 1)
    path.rename(path.with_name("other.db"))
    assert await notices(store, 1) == ["The history is saved again."]
    assert await titles(store) == ["I go on"]


async def test_an_older_file_is_brought_up_to_date(
    make_store: MakeStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_store()
    ask(first.new(), "one")
    first.close()
    added = ("ALTER TABLE conversation ADD COLUMN note TEXT", "UPDATE conversation SET note = 'x'")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
    barrier, failed = threading.Barrier(4), []

    def open_at_once() -> None:
        barrier.wait()
        try:
            schema.connect(path).close()
        except Exception as error:
            failed.append(error)

    monkeypatch.setattr(schema, "_BUSY_S", 5)
    threads = [threading.Thread(target=open_at_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert await titles(make_store()) == ["one"]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT note FROM conversation").fetchall() == [("x",)]
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.connect(path).close()
    bad = ("ALTER TABLE conversation ADD COLUMN note TEXT", "UPDATE nothing SET x = 1")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, bad))
    with pytest.raises(sqlite3.OperationalError):
        schema.connect(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert "note" not in [row[1] for row in connection.execute("PRAGMA table_info(conversation)")]
    connection.close()


async def test_nobody_else_can_read_the_history(store: Store, path: Path) -> None:
    await store.conversations()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
