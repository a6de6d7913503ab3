"""Copying: by a program of this machine where one works, and by asking the terminal (OSC 52), which works over SSH.

A program says whether it has taken the text. A terminal never does.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.settings import Multiplexer
from app.units import format_count

PROGRAMS: tuple[tuple[str, ...], ...] = (
    ("wl-copy",),
    ("xclip", "-selection", "clipboard"),
    ("xsel", "--clipboard", "--input"),
    ("pbcopy",),
    ("clip.exe",),
)
"""What takes the text on its standard input, in the order in which they are tried."""
_TIMEOUT_S = 3.0
_ENCODINGS: Mapping[str, str] = {"clip.exe": "utf-16"}

MAX_OSC_BYTES = 74_994
"""The longest text that is sent to a terminal: 100,000 bytes with the frame around it, as many as terminals take."""
_SCREEN_BYTES = 252  # GNU screen cuts longer strings off


@dataclass(frozen=True)
class Outcome:
    """What became of a text that was to be copied. `program` took it, "" where none did; `problems` are for a person.

    `sent` tells whether the terminal was asked to take it.
    """

    program: str
    sent: bool
    problems: tuple[str, ...]

    def told(self, what: str) -> str:
        """The outcome in words; `what` was copied."""
        if self.program:
            return f"Copied {what} with {self.program}."
        reasons = "; ".join(self.problems)
        if self.sent:
            return f"Sent {what} to the terminal (OSC 52), which does not confirm it; {reasons}."
        return f"Could not copy {what}: {reasons}."


def osc52(text: str, multiplexer: Multiplexer = "") -> str | None:
    """What asks the terminal to copy `text`, in a form that the multiplexer passes on; None where it is too long.

    tmux is asked both for itself (its `set-clipboard`) and to pass it on (its `allow-passthrough`).
    """
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_OSC_BYTES:
        return None
    request = f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\a"
    match multiplexer:
        case "tmux":
            return request + "\x1bPtmux;" + request.replace("\x1b", "\x1b\x1b") + "\x1b\\"
        case "screen":
            pieces = (request[start : start + _SCREEN_BYTES] for start in range(0, len(request), _SCREEN_BYTES))
            return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return request


async def copy(text: str, write: Callable[[str], None], multiplexer: Multiplexer = "") -> Outcome:
    """Copy `text` every way there is; `write` sends to the terminal."""
    request = osc52(text, multiplexer)
    if request is not None:
        write(request)
    program, problems = await asyncio.to_thread(_by_program, text)
    if not problems:
        problems.append("no program for the clipboard is installed")
    if request is None:
        problems.append(f"a terminal takes at most {MAX_OSC_BYTES:,} bytes")
    return Outcome(program, request is not None, tuple(problems))


def size_of(text: str) -> str:
    """How long a copied text is, in words."""
    return format_count(len(text), "character")


def _by_program(text: str) -> tuple[str, list[str]]:
    """The program that took the text, "" for none, and what went wrong with others."""
    problems: list[str] = []
    for command in PROGRAMS:
        name = command[0]
        try:
            problem = _run(command, text.encode(_ENCODINGS.get(name, "utf-8"), "replace"))
        except FileNotFoundError:
            continue
        if problem is None:
            return name, problems
        problems.append(f"{name}: {problem}")
    return "", problems


def _run(command: tuple[str, ...], data: bytes) -> str | None:
    """Why the program did not take `data`, None where it did. Raises FileNotFoundError where there is none."""
    # A file and no pipe: what serves the clipboard from the background would keep a pipe open.
    with tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(command, input=data, stdout=subprocess.DEVNULL, stderr=errors, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"no answer in {_TIMEOUT_S:g} s"
        except FileNotFoundError:
            raise
        except OSError as error:
            return error.strerror or str(error)
        if done.returncode == 0:
            return None
        errors.seek(0)
        return " ".join(errors.read(500).decode("utf-8", "replace").split()) or f"it ended with {done.returncode}"
