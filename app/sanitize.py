"""The border between model text and the terminal: nothing a model writes may act on the screen.

Control characters, bidirectional controls and joiners that join nothing are replaced by visible symbols. Newline and
tab stay; CR LF becomes a newline. Only what is shown passes through here: copies, exports and the history keep the
raw text.
"""

from __future__ import annotations

import re

_C0 = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_C1 = {code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)}
_BIDI = {code: f"⟨U+{code:04X}⟩" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
# U+2028 and U+2029 break lines in some terminals and not in others.
_SEPARATORS = {0x2028: "⟨U+2028⟩", 0x2029: "⟨U+2029⟩"}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "�")
# In front of what it cannot join, terminals let a joiner swallow a cell.
_LONE_JOINER = re.compile(r"\u200d(?=[\x00-\x7f\s]|\Z)")
_UNDECIDED = ("\r", "\u200d")
_VISIBLE: dict[int, str] = _C0 | {0x7F: "␡"} | _C1 | _BIDI | _SEPARATORS | _SURROGATES


def visible(text: str) -> str:
    """`text` with every control, bidirectional and separator character made visible; CR LF becomes LF."""
    if text.isascii() and text.isprintable():
        return text
    return _LONE_JOINER.sub("⟨U+200D⟩", text.replace("\r\n", "\n")).translate(_VISIBLE)


def visible_so_far(text: str) -> str:
    """`visible` of what is typed piece by piece: a joiner at the end may yet join something."""
    end = "\u200d" if text.endswith("\u200d") else ""
    return visible(text.removesuffix(end)) + end


class Sanitizer:
    """`visible` over a stream: a carriage return, or a joiner, waits for the piece that tells what follows it."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """The visible form of the next piece of text."""
        text = self._held + text
        self._held = text[-1:] if text.endswith(_UNDECIDED) else ""
        return visible(text.removesuffix(self._held))

    def flush(self) -> str:
        """What was held back; call at the end of the stream."""
        held, self._held = self._held, ""
        return visible(held)
