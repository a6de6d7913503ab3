"""The whole program in a real terminal, with a real model on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from app.cli import main; sys.exit(main())"


@pytest.mark.parametrize(("columns", "lines"), [(120, 40), (80, 24)])
def test_a_person_talks_and_leaves(smollm2_path: Path, tmp_path: Path, columns: int, lines: int) -> None:
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    child = pexpect.spawn(
        sys.executable,
        ["-c", MAIN, "-m", str(smollm2_path), "--device", "cpu", "--temperature", "0", "--context", "512"],
        cwd=str(ROOT),
        env={**os.environ, **home, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        dimensions=(lines, columns),
        encoding="utf-8",
        timeout=120,
    )
    with (tmp_path / "screen").open("w") as screen:
        child.logfile_read = screen
        child.expect("is ready after")
        child.send("What is the capital of France?\r")
        child.expect("The capital of France is Paris")
        child.expect("tokens · ")
        child.send("\x1bOQ")  # F2
        child.expect("attention.qkv")
        child.send("\x1bOR")  # F3
        child.expect("staging")
        child.send("\x11")  # Ctrl+Q
        child.expect(pexpect.EOF)
        child.close()
    assert child.exitstatus == 0
    drawn = (tmp_path / "screen").read_text()
    assert "\x1b[?1049l" in drawn  # the terminal's own screen is back
    assert "Traceback" not in drawn and "XDG_RUNTIME_DIR" not in drawn
