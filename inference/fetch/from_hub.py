"""Ask the Hugging Face hub, and fetch models and adapters from it into the cache that all programs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inference
from inference.catalog import HubSource
from inference.errors import FetchFailed, ModelNotFound
from inference.fetch.choices import Choice, list_choices
from inference.fetch.process import run_child


@dataclass(frozen=True)
class Repository:
    """What a repository on the hub offers: `license` as its tag says, None where it has none."""

    license: str | None
    choices: tuple[Choice, ...]


def look_up(source: HubSource, cancelled: Callable[[], bool]) -> Repository:
    """What the source's repository holds at its revision. Errors as `fetch_from_hub`."""
    answer = _ask("list", source, Path(), None, lambda *_: None, lambda _: None, cancelled)
    return Repository(answer["license"], list_choices(answer["files"], source.repo, source.revision))


def fetch_from_hub(
    source: HubSource,
    cache: Path,
    sha256: str | None,
    progress: Callable[[int, int], None],
    notice: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> Path:
    """Download what the source names into the hub cache `cache`; return its first GGUF file, or its folder.

    `progress` gets bytes done and in all of all its files. Raises FetchFailed or ModelNotFound, with a reason that
    reads on after the source's name, and Cancelled; nothing half-written is left. huggingface_hub resumes a broken
    transfer within one call; after a cancel or an error a file starts again, and whole files stay.
    """
    return Path(_ask("fetch", source, cache, sha256, progress, notice, cancelled)["path"])


def _ask(
    action: str,
    source: HubSource,
    cache: Path,
    sha256: str | None,
    progress: Callable[[int, int], None],
    notice: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    request = {
        "action": action,
        "kind": source.kind,
        "repo": source.repo,
        "file": source.file,
        "quantization": source.quantization,
        "revision": source.revision,
        "cache": str(cache),
        "sha256": sha256,
    }
    answer: dict[str, Any] = {}

    def on_line(line: str) -> None:
        message = json.loads(line)
        if "done" in message:
            progress(message["done"], message["total"])
        elif "notice" in message:
            notice(message["notice"])
        else:
            answer.update(message)

    # -P: nothing in a current folder can stand in for a module.
    command = [sys.executable, "-P", "-m", "inference.fetch.hub_worker", json.dumps(request)]
    root = Path(inference.__file__).parents[1]
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    # A private chat does not report its use.
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_DISABLE_TELEMETRY": "1"}
    code, errors = run_child(command, root, environment, on_line, lambda: None, cancelled)
    if answer and "error" not in answer:
        return answer
    reason = str(answer.get("error") or f"could not be read: the download process ended with {code}: {_last(errors)}")
    raise (ModelNotFound if answer.get("missing") else FetchFailed)(reason)


def _last(text: str) -> str:
    """The last line of an output that says anything."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it wrote nothing")
