"""What was sent before, to be called back into the prompt."""

from __future__ import annotations

from collections.abc import Iterable


class PromptHistory:
    """Texts from the oldest to the newest, and after them the one that is being written.

    What was changed in a text that was called back stays until something is sent; what was sent is not changed by it.
    """

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._edited: dict[int, str] = {}
        self._at = 0

    def replace(self, texts: Iterable[str]) -> None:
        """Take these for what was sent, the newest last. The text that is being written stays."""
        draft = self._edited.get(len(self._sent))
        self._sent = []
        for text in texts:
            self._append(text)
        self._at = len(self._sent)
        self._edited = {} if draft is None else {self._at: draft}

    def add(self, text: str) -> None:
        """Keep what was just sent."""
        self._append(text)
        self._edited.clear()
        self._at = len(self._sent)

    def older(self, current: str) -> str | None:
        """The text before the `current` one; None at the oldest."""
        return self._go(-1, current)

    def newer(self, current: str) -> str | None:
        """The text after the `current` one; None at the one that is being written."""
        return self._go(1, current)

    def _append(self, text: str) -> None:
        if not self._sent or self._sent[-1] != text:
            self._sent.append(text)

    def _go(self, step: int, current: str) -> str | None:
        target = self._at + step
        if not 0 <= target <= len(self._sent):
            return None
        self._edited[self._at] = current
        self._at = target
        return self._edited.get(target, self._sent[target] if target < len(self._sent) else "")
