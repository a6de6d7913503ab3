from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from app.stderr_guard import start_log

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
from pathlib import Path
from app.stderr_guard import native_stderr_to_log
log = Path(sys.argv[1])
os.write(2, b"before ")
with native_stderr_to_log(log):
    os.write(2, b"native noise")
    print("to the person", file=sys.stderr)
    sys.__stderr__.write("drawn")
os.write(2, b"after")
"""


def test_native_messages_go_to_the_log_and_ours_to_the_person(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "before to the person\nafter"
    assert done.stdout == "drawn"
    assert log.read_text() == "native noise"


def test_a_long_log_is_moved_aside(tmp_path: Path) -> None:
    log = tmp_path / "folder" / "glasschat.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * 1_000_001)
    assert start_log(log) == log
    assert log.stat().st_size == 0
    assert log.with_suffix(".old.log").stat().st_size == 1_000_001


def test_without_a_place_for_the_log_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert start_log(tmp_path / "file" / "log") == Path(os.devnull)


def test_warnings_of_python_go_to_the_log(tmp_path: Path) -> None:
    code = (
        "import sys, warnings; from pathlib import Path; from app.stderr_guard import start_log\n"
        "start_log(Path(sys.argv[1])); warnings.warn('overflow')"
    )
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", code, str(log)], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "" and "overflow" in log.read_text()
