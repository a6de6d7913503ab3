"""The file of the history: SQLite, opened so that several programs may use it and a kill at any moment harms nothing.

Texts are blobs of UTF-8 in which surrogates pass, since SQL text may neither hold a lone surrogate nor, for most
functions, go on after a NUL. `search` holds them folded (`fold`), to be scanned.
"""

from __future__ import annotations

import os
import sqlite3
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.store.records import HistoryError

_APPLICATION_ID = 0x476C6173
_BUSY_S = 1.0
_KEEP_DELETED_S = 7 * 86400.0

_VERSION_1 = (
    """CREATE TABLE conversation (
        id INTEGER PRIMARY KEY,
        title BLOB NOT NULL,
        system BLOB NOT NULL,
        created REAL NOT NULL,
        changed REAL NOT NULL,
        active INTEGER,
        deleted REAL,
        FOREIGN KEY (id, active) REFERENCES message (conversation, id)
    )""",
    "CREATE INDEX conversation_changed ON conversation (changed, id)",
    # A parent's id is less than its child's, so that the tree has no cycles. The body comes last: what is before it is
    # read without the pages that a long one fills.
    """CREATE TABLE message (
        id INTEGER PRIMARY KEY,
        conversation INTEGER NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
        parent INTEGER CHECK (parent < id),
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        created REAL NOT NULL,
        finish_reason TEXT,
        model BLOB NOT NULL,
        settings TEXT NOT NULL,
        figures TEXT NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (conversation, id),
        FOREIGN KEY (conversation, parent) REFERENCES message (conversation, id)
    )""",
    "CREATE INDEX message_parent ON message (conversation, parent)",
    """CREATE TRIGGER message_is_final BEFORE UPDATE ON message WHEN old.finish_reason IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'a finished message never changes'); END""",
    """CREATE TABLE search (
        message INTEGER PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
        folded TEXT NOT NULL
    )""",
)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1,)
"""The statements that bring a file from version N to N + 1, by N."""


def connect(path: Path | None) -> sqlite3.Connection:
    """Open the history, making the file or bringing it up to date, and drop what was deleted a week ago.

    Without a path it is in memory only. Raises HistoryError for a file of another program or of a newer version, else
    OSError or sqlite3.Error.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path or ":memory:", timeout=_BUSY_S, isolation_level=None)
    try:
        _migrate(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.create_function("fold", 1, fold, deterministic=True)
        expired = time.time() - _KEEP_DELETED_S
        if connection.execute("SELECT 1 FROM conversation WHERE deleted < ?", (expired,)).fetchone():
            connection.execute("DELETE FROM conversation WHERE deleted < ?", (expired,))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that happens inside is written at once, or on an exception not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have ended the transaction already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    if _version(connection, path) == len(MIGRATIONS):
        return
    with transaction(connection):
        version = _version(connection, path)  # another program may have been faster
        for statement in (statement for script in MIGRATIONS[version:] for statement in script):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(connection: sqlite3.Connection, path: Path | None) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != _APPLICATION_ID and (application or version or tables):
        raise HistoryError(f"{path} is a database of another program; move it away to begin a new history.")
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"{path} has version {version} of the history, and this Glasschat knows versions up to {len(MIGRATIONS)}: "
            "update Glasschat, or move the file away to begin a new history."
        )
    return int(version)


def to_blob(text: str) -> bytes:
    """Any text as bytes, without loss."""
    return text.encode("utf-8", "surrogatepass")


def from_blob(blob: bytes) -> str:
    """The text that `to_blob` was given."""
    return blob.decode("utf-8", "surrogatepass")


def fold(text: str | bytes) -> str:
    """`text` as it is compared in a search: without case, compatible forms alike, and fit to be SQL text."""
    if isinstance(text, bytes):
        text = from_blob(text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
