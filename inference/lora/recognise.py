"""Tells LoRA adapters from other files, without reading them whole."""

from __future__ import annotations

import struct
from pathlib import Path

PEFT_CONFIG = "adapter_config.json"

# In a GGUF file: the key, the type of its value (8, a string), and the value, each string after its length.
_GGUF_MARK = b"general.type" + struct.pack("<IQ", 8, len("adapter")) + b"adapter"
_GGUF_HEAD = 1 << 16  # bytes; general keys come first, and adapters have no vocabulary


def is_adapter(path: Path) -> bool:
    """Whether a path is a PEFT folder, or a GGUF file that says it is an adapter. Reads a file's beginning."""
    try:
        if path.is_dir():
            return (path / PEFT_CONFIG).is_file()
        if path.suffix.lower() != ".gguf":
            return False
        with path.open("rb") as file:
            return _GGUF_MARK in file.read(_GGUF_HEAD)
    except OSError:
        return False
