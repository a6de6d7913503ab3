"""A chat in a real terminal that is killed in the middle of a reply."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pexpect

from app.store import schema
from tests.app.conftest import without_size

ROOT = Path(__file__).parents[2]


def start(folder: Path, *flags: str) -> pexpect.spawn:
    return pexpect.spawn(
        sys.executable,
        ["-m", "tests.app.scripted_chat", str(folder), *flags],
        cwd=str(ROOT),
        env={**without_size(os.environ), "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        dimensions=(40, 120),
        encoding="utf-8",
        timeout=30,
    )


def saved(folder: Path) -> str:
    connection = schema.connect(folder / "history.db")
    try:
        (body,) = connection.execute("SELECT body FROM message WHERE role = 'assistant'").fetchone()
        return schema.from_blob(body)
    finally:
        connection.close()


def test_a_reply_is_there_to_the_last_second_after_a_kill(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.expect("is ready")
    child.send("count\r")
    child.expect(r"\bn100\b")
    seen, begun = 100, time.monotonic()
    while time.monotonic() < begun + 0.6:  # some more of it, to where it happens to be
        child.expect(r"\bn(\d+) ")
        seen = max(seen, int(child.match.group(1)))
    child.kill(signal.SIGKILL)
    child.wait()

    text = saved(tmp_path)
    numbers = [int(word.removeprefix("n")) for word in text.split()]
    assert numbers == list(range(len(numbers)))
    assert numbers[-1] > seen - 300  # as many as it writes in a second

    child = start(tmp_path, "--continue")
    screen, deadline = "", time.monotonic() + 30
    while not all(part in screen for part in (f" n{numbers[-1]}", "count", "cut off")):
        assert time.monotonic() < deadline, screen
        screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", child.read_nonblocking(65536, timeout=20))
    child.send("\x11")  # Ctrl+Q
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
