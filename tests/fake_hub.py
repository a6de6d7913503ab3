"""A small server that speaks the routes of the Hugging Face hub."""

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """What the server holds and how it behaves; tests change the fields.

    Files of at least `lfs_from` bytes answer as on the hub: a redirect with the checksum, to another host.
    """

    files: dict[str, bytes] = field(default_factory=dict)  # "org/repo/file" -> contents
    commits: dict[str, str] = field(default_factory=dict)  # "org/repo" -> what `main` stands for, COMMIT if not here
    tags: dict[str, str] = field(default_factory=dict)  # "org/repo@tag" -> the commit it stands for
    etags: dict[str, str] = field(default_factory=dict)  # where it should not be the SHA-256
    gated: set[str] = field(default_factory=set)  # seen, but files need a login
    licenses: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # where the listing should tell another one
    status: int | None = None  # answer every request with this one
    refusal: str = ""  # said with it
    break_after: int | None = None  # close each connection after so many bytes of a file
    pause_s: float = 0.0  # before each piece
    piece: int = 64 * 1024
    lfs_from: int = 8
    requests: list[str] = field(default_factory=list)  # "GET /path", with " bytes=..." where a range is asked for
    authorised: list[str] = field(default_factory=list)  # paths that were asked with a login
    url: str = ""

    def put(self, repo: str, file: str, contents: bytes) -> str:
        """Add a file and return its SHA-256."""
        self.files[f"{repo}/{file}"] = contents
        return hashlib.sha256(contents).hexdigest()

    def etag(self, key: str) -> str:
        return self.etags.get(key, hashlib.sha256(self.files[key]).hexdigest())

    def commit(self, repo: str, revision: str) -> str | None:
        """The commit that a revision stands for, or None."""
        main = self.commits.get(repo, COMMIT)
        known = {"main": main, main: main}
        known |= {tag: commit for key, commit in self.tags.items() for tag in (key.partition("@")[2], commit)}
        return known.get(revision)

    def downloads(self) -> list[str]:
        """The requests for files' contents."""
        return [request for request in self.requests if request.startswith(("GET /cdn/", "GET /org/"))]


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        asked = self.headers.get("Range")
        self.hub.requests.append(f"{self.command} {self.path}" + (f" {asked}" if asked else ""))
        path = self.path.partition("?")[0]
        if "Authorization" in self.headers:
            self.hub.authorised.append(path)
        if self.hub.status is not None:
            self._refuse(self.hub.status, "")
        elif path.startswith("/cdn/"):
            self._send_file(path.removeprefix("/cdn/"), COMMIT, with_body)
        elif path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self._answer_listing(repo, unquote(revision))
        else:
            repo, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            self._answer_file(repo, unquote(revision), file, with_body)

    def _answer_file(self, repo: str, revision: str, file: str, with_body: bool) -> None:
        key, commit = f"{repo}/{file}", self.hub.commit(repo, revision)
        if repo in self.hub.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo")
        elif repo in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif commit is None:
            self._refuse(404, "RevisionNotFound")
        elif key not in self.hub.files:
            self._refuse(404, "EntryNotFound")
        elif len(self.hub.files[key]) < self.hub.lfs_from:
            self._send_file(key, commit, with_body)
        else:
            self.send_response(302)
            # Another host, as far as a client can tell.
            self.send_header("Location", f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{key}")
            self.send_header("X-Linked-Size", str(len(self.hub.files[key])))
            self.send_header("X-Linked-ETag", f'"{self.hub.etag(key)}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer_listing(self, repo: str, revision: str) -> None:
        names = [key.removeprefix(f"{repo}/") for key in self.hub.files if key.startswith(f"{repo}/")]
        commit = self.hub.commit(repo, revision)
        if not names:
            # What the hub answers for a repository that is private or not there.
            self._refuse(401, "RepoNotFound")
            return
        if commit is None:
            self._refuse(404, "RevisionNotFound")
            return
        siblings = []
        for name in names:
            key = f"{repo}/{name}"
            size = self.hub.sizes.get(key, len(self.hub.files[key]))
            lfs = {"sha256": self.hub.etag(key), "size": size, "pointerSize": 130}
            siblings.append({"rfilename": name, "size": size} | ({"lfs": lfs} if size >= self.hub.lfs_from else {}))
        tags = [f"license:{self.hub.licenses[repo]}"] if repo in self.hub.licenses else []
        body = json.dumps({"id": repo, "sha": commit, "tags": tags, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", self.hub.refusal)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_file(self, key: str, commit: str, with_body: bool) -> None:
        contents = self.hub.files[key]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.hub.etag(key)}"')
        self.send_header("X-Repo-Commit", commit)
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


@contextmanager
def running_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeHub]:
    """A hub on this machine, which this process and its children are told to use, with `home` as the hub's folder."""
    hub = FakeHub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(home))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
