"""The person's own editor on a text."""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
from pathlib import Path


class EditorFailed(Exception):
    """The text was not edited, and why, in one line."""


def edit_text(text: str, command: str) -> str:
    """Run the editor `command`, which may have arguments, on `text`, and return what it left. Raises EditorFailed.

    The terminal must be free: the editor has it until it ends. A line break that editors put at the end is dropped.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise EditorFailed(
            f"The editor {command!r} cannot be run ({error}); set VISUAL or EDITOR to another."
        ) from None
    # Ctrl+C is for the editor. A handler that does nothing is not handed down to it, as ignoring the signal would be.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with tempfile.TemporaryDirectory(prefix="glasschat-") as folder:
            file = Path(folder) / "message.md"
            file.write_text(text, encoding="utf-8", newline="")
            code = subprocess.run([*words, str(file)], check=False).returncode
            edited = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise EditorFailed("The editor left a file that is not UTF-8; the message stays as it was.") from None
    except OSError as error:
        raise EditorFailed(
            f"The editor {command!r} cannot be run ({error.strerror}); set VISUAL or EDITOR to another."
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise EditorFailed(f"The editor {words[0]} ended with code {code}; the message stays as it was.")
    return edited if text.endswith("\n") else edited.removesuffix("\n")
