"""Replies to one question that are written at the same time: what there is of each, and what to say of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from app.conversation import Answer
from app.notes import reason_words
from app.units import format_count
from inference.events import Token

MOST = 8


class Candidate:
    """One of the replies. `reason` is why it has ended, None as long as it has not; `number` counts from 1.

    Times are those of the interface's clock, at which its tokens were heard of.
    """

    def __init__(self, number: int, answer: Answer) -> None:
        self.number = number
        self.answer = answer
        self.tokens = 0
        self.reason: str | None = None
        self.ended = False
        self.first_at: float | None = None
        self.last_at: float | None = None

    def take(self, token: Token) -> None:
        """Keep a token."""
        self.answer.take(token)
        if token.id >= 0:
            self.tokens += 1
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at

    def end(self, reason: str) -> None:
        """No more comes."""
        self.answer.end()
        self.reason, self.ended = reason, True

    @property
    def rate(self) -> float:
        """Tokens per second after the first one, 0 while there is nothing to measure."""
        return _rate(self.tokens - 1, self.first_at, self.last_at)

    def label(self, short: bool) -> str:
        """What a tab says: the number, whether it is being written, tokens and, unless it is to be short, the speed."""
        mark = "●" if not self.ended else "✓" if self.reason == "stop" else "■"
        rate = f" · {self.rate:.1f}/s" if self.rate and not short else ""
        return f"{self.number} {mark} {self.tokens}{rate}"

    def words(self) -> str:
        """What it does now, or why it ended, how long it is, and how fast it was written."""
        state = "writing" if self.tokens else "waiting"
        if self.ended:
            state = reason_words(self.reason) or "finished"
        rate = f" · {self.rate:.1f} tok/s" if self.rate else ""
        return f"{state} · {format_count(self.tokens, 'token')}{rate}"


def together(candidates: Sequence[Candidate]) -> str:
    """The tokens of all, and how fast they were written together."""
    tokens = sum(each.tokens for each in candidates)
    firsts = [each.first_at for each in candidates if each.first_at is not None]
    lasts = [each.last_at for each in candidates if each.last_at is not None]
    if not firsts:
        return ""
    rate = _rate(tokens - len(firsts), min(firsts), max(lasts))
    return f"all: {tokens:,} tokens" + (f" · {rate:.1f} tok/s" if rate else "")


def _rate(tokens: int, first_at: float | None, last_at: float | None) -> float:
    if first_at is None or last_at is None or last_at <= first_at or tokens < 1:
        return 0.0
    return tokens / (last_at - first_at)
