"""A reply that is being written: text comes in, finished items and the lines of the growing one go out."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from rich.text import Text
from textual.strip import Strip

from app.theme import Look
from app.widgets.column import lay_out_all, strips
from app.widgets.markdown_blocks import MarkdownStream, feed_all
from app.widgets.render import Item, Laid, Note, lay_out_growing
from app.widgets.thought import GrowingThought

Thoughts = list[tuple[str, int, float]]
"""Pieces of a thought, each with the thought's tokens and seconds so far."""


@dataclass(frozen=True)
class Pass:
    """What one pass over a growing reply gave, and for which width and look.

    `thinking` says that `growing` begins with the line of a thought.
    """

    width: int
    look: Look
    done: list[Item]
    laid: list[Laid]
    growing: list[Strip]
    thinking: bool
    cpu_s: float


class GrowingReply:
    """Text that waits to be shown, and what was made of the text before. `first` is the item above it.

    `message` is set with `ended`: the id of the message that the reply has become, None if it became none.
    `lay_out` runs on another thread, and `stream` and `thought` are its own.
    """

    def __init__(self, first: Item, unfolded: bool) -> None:
        self.first = first
        self.message: int | None = None
        self.stream = MarkdownStream()
        self.thought: GrowingThought | None = None
        self.thought_pending: Thoughts = []
        self.pending: list[str] = []
        self.unfolded = unfolded
        self.after: list[Note] = []
        self.wake = asyncio.Event()
        self.ended = asyncio.Event()

    def unfold(self, unfolded: bool) -> None:
        """Show the thought that the reply begins with unfolded, or folded."""
        self.unfolded = unfolded
        self.wake.set()

    def take(self) -> tuple[Thoughts, str]:
        """What waits."""
        waiting = self.thought_pending, "".join(self.pending)
        self.thought_pending, self.pending = [], []
        return waiting

    def lay_out(self, waiting: tuple[Thoughts, str], ended: bool, width: int, look: Look, carry: Text | None) -> Pass:
        """Take what waited and lay out what is new or growing; `carry` is the line that the first item goes on from."""
        started = time.thread_time()
        return self._laid(self._advance(*waiting, ended), width, look, carry, started)

    def lay_out_again(self, result: Pass, width: int, look: Look, carry: Text | None) -> Pass:
        """The same pass for another width or look; on another thread, too."""
        return self._laid(result.done, width, look, carry, time.thread_time())

    def _laid(self, done: list[Item], width: int, look: Look, carry: Text | None, started: float) -> Pass:
        laid = lay_out_all(done, width, look, carry)
        carry = laid[-1].carry if laid else carry
        growing = lay_out_growing(self.thought, width, look) if self.thought is not None else []
        growing += strips(lay_out_all(self.stream.growing, width, look, carry))
        return Pass(width, look, done, laid, growing, self.thought is not None, time.thread_time() - started)

    def _advance(self, thoughts: Thoughts, text: str, ended: bool) -> list[Item]:
        """The items that are finished now."""
        for thought in thoughts:
            if self.thought is None:
                self.thought, self.stream = GrowingThought(), MarkdownStream(gap=True)
            self.thought.feed(*thought)
        done: list[Item] = []
        if self.thought is not None:
            self.thought.unfolded = self.unfolded
            if text or ended:
                done.append(self.thought.ended(answered=bool(text)))
                self.thought = None
        return [*done, *feed_all(self.stream, text, ended)]
