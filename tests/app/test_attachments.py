"""Files named in a message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.attachments import (
    MOST_BYTES,
    Attachment,
    BadAttachment,
    fenced,
    mentioned,
    read_attachment,
    with_attachments,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes.txt").write_text("about tides\n")
    (tmp_path / "my notes").write_text("mine")
    (tmp_path / "Makefile").write_text("all:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see @notes.txt", ("notes.txt",)),
        ("(see) @notes.txt, then @notes.txt.", ("notes.txt",)),
        ('@"my notes" and @~/notes.txt', ("my notes", "~/notes.txt")),
        ("@Makefile", ("Makefile",)),
        ("@gone.txt and @/no/such", ("gone.txt", "/no/such")),
        ("me@notes.txt", ()),
        ("@ notes.txt", ()),
        ("thanks @alice!", ()),
        ("@dataclass\n@app.route('/x')\n@functools.lru_cache(1)\n@types/node", ()),
        (f"@{'x' * 5000}", ()),
    ],
)
def test_which_files_are_named(text: str, expected: tuple[str, ...]) -> None:
    assert mentioned(text) == expected


def test_a_file_is_fenced_under_its_name() -> None:
    sent = with_attachments("see @notes.txt", (read_attachment("notes.txt"),))
    assert sent == "see @notes.txt\n\nnotes.txt:\n```txt\nabout tides\n```"


def test_a_fence_is_longer_than_those_in_the_file() -> None:
    assert fenced(Attachment("a.md", "````\nx\n````")) == "a.md:\n`````md\n````\nx\n````\n`````"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.txt", "there is no such file"),
        ("a\0b", "it cannot be read"),
        ("binary", "not a text file"),
        ("latin", "not a text file"),
        ("folder", "it is a folder"),
        ("pipe", "no ordinary file"),
        ("big", "at most 2.0 MiB"),
        ("\x1b]0;x\x07", "there is no such file"),
    ],
)
def test_what_cannot_be_attached_is_told_in_one_line(folder: Path, name: str, said: str) -> None:
    (folder / "binary").write_bytes(b"ab\0c")
    (folder / "latin").write_bytes(b"caf\xe9")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    with (folder / "big").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(BadAttachment) as raised:
        read_attachment(name)
    assert said in str(raised.value)
    assert str(raised.value).isprintable()
