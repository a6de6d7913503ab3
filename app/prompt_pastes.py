"""Long pastes in the prompt: a short label stands for each, and is replaced by its text when that is sent."""

from __future__ import annotations

import re

from app.units import format_count

# A text area of this size is still drawn and edited within a few milliseconds a key.
_MOST_LINES = 40
_MOST_CHARS = 4_000
_LABEL = re.compile(r"\[pasted [\d,]+ (?:lines?|characters?)(?: #\d+)?\]")


class Pastes:
    """The long texts of one message by their labels."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """A label for `text`, or `text` itself where it is short."""
        lines = text.count("\n") + 1
        if lines <= _MOST_LINES and len(text) <= _MOST_CHARS:
            return text
        size = format_count(lines, "line") if lines > 1 else format_count(len(text), "character")
        label, number = f"[pasted {size}]", 2
        while self._texts.get(label, text) != text:
            label, number = f"[pasted {size} #{number}]", number + 1
        self._texts[label] = text
        return label

    def expand(self, text: str) -> str:
        """`text` with the long texts in place of their labels."""
        return _LABEL.sub(lambda match: self._texts.get(match[0], match[0]), text) if self._texts else text

    def labels(self, line: str) -> list[tuple[int, int]]:
        """Where labels stand in a line, as (start, end)."""
        return [match.span() for match in _LABEL.finditer(line) if match[0] in self._texts] if self._texts else []

    def clear(self) -> None:
        """Forget them all."""
        self._texts.clear()
