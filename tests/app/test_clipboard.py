"""The clipboard: programs, what is sent to a terminal, and what is said of both."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import clipboard
from app.clipboard import MAX_OSC_BYTES, copy, osc52

HOSTILE = "red \x1b[31m\x07\x1b]52;c;AAAA\x07\x9c 日本 \ud800"


def decoded(request: str) -> str:
    found = re.fullmatch(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", request)
    assert found, request
    return base64.b64decode(found[1]).decode()


@given(st.text())
def test_nothing_but_the_request_reaches_the_terminal(text: str) -> None:
    assert decoded(osc52(text) or "") == text.encode("utf-8", "replace").decode()


def test_tmux_passes_it_on() -> None:
    plain = osc52("text")
    request = osc52("text", "tmux")
    assert plain and request and request.startswith(plain)
    wrapped = re.fullmatch(r"\x1bPtmux;(.*)\x1b\\", request.removeprefix(plain))
    assert wrapped and wrapped[1].count("\x1b") == 2 * plain.count("\x1b")
    assert decoded(wrapped[1].replace("\x1b\x1b", "\x1b")) == "text"


def test_screen_passes_it_on_in_pieces_that_it_takes() -> None:
    request = osc52("x" * 1000, "screen") or ""
    pieces = re.findall(r"\x1bP(.*?)\x1b\\", request, re.DOTALL)
    assert sum(map(len, pieces)) + 4 * len(pieces) == len(request)
    assert max(map(len, pieces)) < 256  # GNU screen's limit for a string
    assert decoded("".join(pieces)) == "x" * 1000


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH but for the shell's own commands, and the programs that are tried."""
    monkeypatch.setattr(clipboard, "PROGRAMS", (("wl-copy",), ("xclip", "-selection", "clipboard"), ("clip.exe",)))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    program.chmod(0o755)


async def copied(text: str) -> tuple[str, str]:
    """What was sent to the terminal, and what is said."""
    sent: list[str] = []
    outcome = await copy(text, sent.append)
    return "".join(sent), outcome.told("it")


async def test_a_program_that_takes_it_is_named(programs: Path) -> None:
    install(programs, "xclip", f'echo "$@" > {programs}/given; cat > {programs}/taken')
    sent, said = await copied("日本\x1b[31m")
    assert (programs / "taken").read_text() == "日本\x1b[31m"
    assert (programs / "given").read_text() == "-selection clipboard\n"
    assert decoded(sent) == "日本\x1b[31m"  # for a terminal elsewhere
    assert said == "Copied it with xclip."


async def test_the_next_is_tried_where_one_fails(programs: Path) -> None:
    install(programs, "wl-copy", "echo no display >&2; exit 1")
    install(programs, "clip.exe", f"cat > {programs}/taken")
    assert (await copied("é"))[1] == "Copied it with clip.exe."
    assert (programs / "taken").read_bytes().decode("utf-16") == "é"


async def test_a_terminal_is_never_said_to_have_taken_it(programs: Path) -> None:
    sent, said = await copied(HOSTILE)
    assert decoded(sent)
    assert said == (
        "Sent it to the terminal (OSC 52), which does not confirm it; no program for the clipboard is installed."
    )
    install(programs, "wl-copy", "echo no display >&2; exit 1")
    assert "wl-copy: no display" in (await copied("text"))[1]


async def test_what_is_too_long_for_a_terminal_is_said(programs: Path) -> None:
    sent, said = await copied("x" * (MAX_OSC_BYTES + 1))
    assert sent == ""
    assert said == (
        "Could not copy it: no program for the clipboard is installed; a terminal takes at most 74,994 bytes."
    )
    install(programs, "xclip", f"cat > {programs}/taken")
    assert (await copied("x" * (MAX_OSC_BYTES + 1)))[1] == "Copied it with xclip."
    assert (programs / "taken").stat().st_size == MAX_OSC_BYTES + 1
    assert len((await copied("x" * MAX_OSC_BYTES))[0]) <= 100_000


async def test_one_that_stays_to_serve_the_clipboard_is_not_waited_for(programs: Path) -> None:
    install(programs, "wl-copy", "cat > /dev/null; sleep 2 &")
    began = time.monotonic()
    assert (await copied("text"))[1] == "Copied it with wl-copy."
    assert time.monotonic() - began < 1.5


async def test_one_that_hangs_is_given_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "_TIMEOUT_S", 0.2)
    install(programs, "wl-copy", "exec sleep 5")
    assert "wl-copy: no answer in 0.2 s" in (await copied("text"))[1]


async def test_one_that_cannot_be_run_is_said(programs: Path) -> None:
    (programs / "wl-copy").write_text("")
    assert "wl-copy: Permission denied" in (await copied("text"))[1]
