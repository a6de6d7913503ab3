"""Reads the JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.errors import BadModelFile
from inference.formats.tensors import FETCH_AGAIN


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file. Raises BadModelFile for anything else."""
    return parse_json(path, contents) if (contents := read_file(path)) is not None else {}


def read_file(path: Path) -> bytes | None:
    """The file's contents; None where there is none. Raises BadModelFile where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadModelFile(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None


def parse_json(path: Path, contents: bytes) -> dict[str, Any]:
    """The object that a file's contents are. Raises BadModelFile, naming the file, where they are none."""
    try:
        document = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{path}: is not JSON ({error}); {FETCH_AGAIN}") from None
    if not isinstance(document, dict):
        raise BadModelFile(f"{path}: holds a {type(document).__name__}, expected a JSON object; {FETCH_AGAIN}")
    return document
