"""Files named in a message as `@path` or `@"path with spaces"`: found, read, and put after the message."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.sanitize import visible
from app.units import format_bytes

MOST_BYTES = 2 << 20
_MENTION = re.compile(r'(?:(?<=\s)|^)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"]+))')
# What is not here is told of only where it can hardly be meant as anything but a file.
_LIKE_A_PATH = re.compile(r"(?:~|\.{1,2})?/[^()@]+|[^()@]*\w\.[A-Za-z]\w{0,3}")
_TRAILING = ".,;:!?)]}'"


class BadAttachment(Exception):
    """A file that cannot be attached, and why, in one line."""


@dataclass(frozen=True)
class Attachment:
    """A text file by the name that was typed."""

    name: str
    text: str


def mentioned(text: str) -> tuple[str, ...]:
    """The paths of the files that a message names, each once.

    A word after @ that is no file counts only if it looks like a path; so may names of people and Python's decorators
    be written.
    """
    found = (match["quoted"] or _plain(match["plain"]) for match in _MENTION.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name))


def _plain(word: str) -> str:
    """The path in a word, which punctuation may follow; "" if it is none."""
    for name in (word, word.rstrip(_TRAILING)):
        if name and os.path.isfile(os.path.expanduser(name)):
            return name
    word = word.rstrip(_TRAILING)
    return word if _LIKE_A_PATH.fullmatch(word) or os.path.exists(os.path.expanduser(word)) else ""


def read_attachment(name: str) -> Attachment:
    """The text of a file. Raises BadAttachment."""
    path = Path(os.path.expanduser(name))
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise _bad(name, "it is a folder; name a file in it")
        if not stat.S_ISREG(found.st_mode):
            raise _bad(name, "it is no ordinary file")
        if found.st_size > MOST_BYTES:
            raise _bad(
                name, f"it has {format_bytes(found.st_size)}, at most {format_bytes(MOST_BYTES)} can be attached"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise _bad(name, "there is no such file; put a space after @ to write it as text") from None
    except (OSError, ValueError) as error:
        raise _bad(name, f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise _bad(name, "it is not a text file in UTF-8")
    return Attachment(name, text)


def _bad(name: str, why: str) -> BadAttachment:
    return BadAttachment(f"@{visible(name)} cannot be attached: {why}.")


def with_attachments(text: str, files: Iterable[Attachment]) -> str:
    """The message as it is sent: its text, then each file under its name and between fences."""
    return "\n\n".join((text, *map(fenced, files)))


def fenced(file: Attachment) -> str:
    """A file under its name, between fences that are longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", file.text)), default=2)
    fence = "`" * (longest + 1)
    ending = "" if file.text.endswith("\n") or not file.text else "\n"
    return f"{file.name}:\n{fence}{Path(file.name).suffix[1:]}\n{file.text}{ending}{fence}"
