"""What stands between the command and the first frame: nothing that only a model needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect

from tests.app.conftest import without_size

ROOT = Path(__file__).parents[2]
# What the engine, the tokenizer, templates and downloads need. (Where the hub keeps its cache is asked before.)
HEAVY = ("numpy", "wgpu", "tokenizers", "jinja2", "huggingface_hub.file_download", "httpx", "inference.engine")
# In place of the first command to the engine, tells which of them are there, once all before it is on the terminal.
PROGRAM = f"""
import os, sys, time
from app import cli
from app.engine_thread import EngineThread

def tell(self, command):
    time.sleep(0.5)
    found = " ".join(name for name in {HEAVY!r} if name in sys.modules)
    os.write(1, f"<<{{type(command).__name__}}:{{found}}>>".encode())
    os._exit(0)

EngineThread.submit = tell
cli.main(sys.argv[1:])
"""


def test_the_engine_is_imported_after_the_first_frame(tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "-m", "tests/data/tiny/qwen3", "--device", "cpu"],
        cwd=str(ROOT),
        env={**without_size(os.environ), "HOME": str(tmp_path), "TERM": "xterm-256color"},
        dimensions=(24, 80),
        encoding="utf-8",
        timeout=60,
    )
    child.expect(r"<<(\w+):(.*?)>>")
    assert child.match.groups() == ("Load", "")
    assert "F1 shows the keys" in child.before and "Write a message" in child.before
    child.expect(pexpect.EOF)
    child.close()
