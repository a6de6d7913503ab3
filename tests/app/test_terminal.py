"""The whole program in a real terminal, with a real model on the CPU."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from inference.catalog import HubSource, load_catalog
from tests.app.conftest import without_size
from tests.fake_hub import FakeHub, running_hub

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from app.cli import main; sys.exit(main())"


@contextmanager
def chat(home: Path, size: tuple[int, int], *flags: str) -> Iterator[pexpect.spawn]:
    """The program in a terminal of `size` (columns, lines), with a home of its own; it must end by itself, with 0."""
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    child = pexpect.spawn(
        sys.executable,
        ["-c", MAIN, *flags, "--device", "cpu", "--temperature", "0", "--context", "512"],
        cwd=str(ROOT),
        env={
            **without_size(os.environ),
            **dict.fromkeys(names, str(home)),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        },
        dimensions=size[::-1],
        encoding="utf-8",
        timeout=40,
    )
    with (home / "screen").open("w") as screen:
        child.logfile_read = screen
        yield child
        child.send("\x11")  # Ctrl+Q
        child.expect(pexpect.EOF)
        child.close()
    assert child.exitstatus == 0
    drawn = (home / "screen").read_text()
    assert "\x1b[?1049l" in drawn  # the terminal's own screen is back
    assert "Traceback" not in drawn and "XDG_RUNTIME_DIR" not in drawn


def test_a_person_talks_and_leaves(smollm2_path: Path, tmp_path: Path) -> None:
    with chat(tmp_path, (80, 24), "-m", str(smollm2_path)) as child:
        child.expect("is ready after")
        child.send("What is the capital of France?\r")
        child.expect("The capital of France is Paris")
        child.expect("tokens · ")
        child.send("\x1bOQ")  # F2
        child.expect("attention.qkv")
        child.send("\x1bOR")  # F3
        child.expect("staging")


def shows(child: pexpect.spawn, *parts: str, key: str = "") -> None:
    """Wait until all parts have been drawn, in any order; `key` is pressed until then, since it can come too early."""
    drawn, deadline, pressed = "", time.monotonic() + 60, 0.0
    while missing := [part for part in parts if part not in drawn]:
        assert time.monotonic() < deadline, missing
        if key and time.monotonic() > pressed + 2:
            child.send(key)
            pressed = time.monotonic()
        drawn += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", child.read_nonblocking(65536, timeout=30))


@pytest.fixture
def hub(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that has the starter model and no other."""
    catalog = load_catalog()
    starter = catalog.find(catalog.starter)
    assert starter is not None
    source = next(source for source in starter.sources if isinstance(source, HubSource))
    with running_hub(monkeypatch, tmp_path / "hub") as hub:
        hub.put(source.repo, starter.file, smollm2_path.read_bytes())
        hub.etags[f"{source.repo}/{starter.file}"] = starter.sha256
        hub.commits[source.repo] = source.revision
        yield hub


def test_a_first_session_from_the_empty_home_to_the_conversation_that_is_gone_on_with(
    hub: FakeHub, tmp_path: Path
) -> None:
    with chat(tmp_path, (120, 40)) as child:
        shows(child, "SmolLM2 135M Instruct", "start here")
        child.send("\r")
        shows(child, "is ready after")
        assert len(hub.downloads()) == 1
        child.send("Tell me a long story about a dragon.\r")
        shows(child, "There was a time when")
        child.send("\x1b")  # Esc
        shows(child, "stopped")
        child.send("\x1be")  # Alt+E: the question is in the box again
        shows(child, "Tell me a long story")
        child.send("\x15\x0b")  # Ctrl+U, Ctrl+K: empty the line
        child.send("What is the capital of France?\r")
        shows(child, "< 2/2 >", "Paris", "tokens · ")
        shows(child, "< 1/2 >", "There was a time when", "stopped", "branch 1/2", key="\x1b[1;3D")  # Alt+Left
        shows(child, "< 2/2 >", "Paris", "branch 2/2", key="\x1b[1;3C")  # Alt+Right
        for opened, words in (("\x1bOQ", "attention.qkv"), ("\x1bOR", "staging"), ("\x1bOS", "a cell")):  # F2, F3, F4
            child.send(opened)
            shows(child, words)
        child.send("\x1bOQ")
        child.send("\x1b[18~")  # F7
        shows(child, "Kernels")
        child.send("k")
        shows(child, "feed_forward.down")
    with chat(tmp_path, (120, 40), "--continue") as child:
        shows(child, "What is the capital of France?", "< 2/2 >", "Paris", "feed_forward.down", "is ready after")
    assert len(hub.downloads()) == 1
