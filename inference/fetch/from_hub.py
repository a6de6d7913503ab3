"""Fetch a file from the Hugging Face hub into the cache that all programs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from inference.catalog import HubSource
from inference.errors import FetchFailed, ModelNotFound
from inference.fetch import hub_worker
from inference.fetch.process import run_child


def fetch_from_hub(
    source: HubSource,
    cache: Path,
    sha256: str | None,
    progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Path:
    """Download the source's file into the hub cache `cache` and return its path there.

    `progress` gets bytes done and in all. Raises FetchFailed or ModelNotFound, with a reason that reads on after the
    source's name, and Cancelled; nothing half-written is left. huggingface_hub resumes a broken transfer within one
    call; after a cancel or an error a file starts again.
    """
    request = {
        "repo": source.repo,
        "file": source.file,
        "revision": source.revision,
        "cache": str(cache),
        "sha256": sha256,
    }
    answer: dict[str, str | bool] = {}

    def on_line(line: str) -> None:
        message = json.loads(line)
        if "done" in message:
            progress(message["done"], message["total"])
        else:
            answer.update(message)

    command = [sys.executable, "-P", hub_worker.__file__, json.dumps(request)]
    folder = Path(hub_worker.__file__).parent
    # A private chat does not report its use.
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"}
    code, errors = run_child(command, folder, environment, on_line, lambda: None, cancelled)
    if "path" in answer:
        return Path(str(answer["path"]))
    reason = str(answer.get("error") or f"could not be read: the download process ended with {code}: {_last(errors)}")
    raise (ModelNotFound if answer.get("missing") else FetchFailed)(reason)


def _last(text: str) -> str:
    """The last line of an output that says anything."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it wrote nothing")
