"""Fixtures of the history's tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the history is; nothing is there yet."""
    return tmp_path / "data" / "history.db"


@pytest.fixture
def make_store(path: Path) -> Iterator[Callable[[], Store]]:
    """Stores on `path`, each like that of another program; all are closed in the end."""
    stores: list[Store] = []

    def make() -> Store:
        stores.append(Store(path))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    """What another program finds in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
