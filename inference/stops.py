"""Ending a reply: stop strings that may span tokens, with partial ones held back until they are decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """Text that may be shown; `stopped` once a stop string was found (nothing after it is ever released)."""

    text: str
    stopped: bool


class StopStrings:
    """Watches a growing text for the first of several stop strings to be complete; of those, the longest."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Release:
        """The text that is now certain not to be part of a stop string."""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # What is complete first counts, so that the text does not depend on how it was cut into tokens.
            _, start = min(found)
            released, self._held = self._held[:start], ""
            return Release(released, True)
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        released = self._held[: len(self._held) - keep]
        self._held = self._held[len(released) :]
        return Release(released, False)

    def flush(self) -> str:
        """What was held back, when the reply ended without a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
