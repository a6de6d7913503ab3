"""The list of conversations: the newest first, more of them as one goes down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.sanitize import visible
from app.store.records import Hit, Summary
from app.theme import Look, make_look, on_theme

WIDTH = 30  # cells of a row
_AHEAD = 10  # rows from the end at which more are asked for


class ConversationList(OptionList):
    """Conversations, one chosen. `current` is the id of the one on the screen."""

    DEFAULT_CSS = """
    ConversationList {
        height: 1fr; border: none; padding: 0; background: $background; scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        &:focus { border: none; background-tint: transparent; }
    }
    """

    class NearEnd(Message):
        """More conversations would be seen soon."""

    def __init__(self) -> None:
        super().__init__()
        self.hits: list[Hit] = []
        self.current = 0

    def on_mount(self) -> None:
        on_theme(self, lambda: self._paint(range(len(self.hits))))

    @property
    def chosen(self) -> Summary | None:
        """The highlighted conversation."""
        return self.hits[self.highlighted].conversation if self.highlighted is not None and self.hits else None

    def fill(self, hits: Sequence[Hit], keep: bool) -> None:
        """Show these conversations; with `keep` the same one stays highlighted, if it is still there."""
        before = self.chosen if keep else None
        self.hits = []
        self.clear_options()
        self.extend(hits)
        ids = [hit.conversation.id for hit in hits]
        if before is not None and before.id in ids:
            self.highlighted = ids.index(before.id)
        elif ids:
            self.highlighted = ids.index(self.current) if keep and self.current in ids else 0

    def extend(self, hits: Sequence[Hit]) -> None:
        """Show these conversations below the others."""
        look = make_look(self.app.theme_variables)
        self.hits += hits
        self.add_options([Option(_row(hit, hit.conversation.id == self.current, look)) for hit in hits])

    def mark(self, conversation: int) -> None:
        """Mark the conversation that is on the screen now."""
        changed, self.current = {self.current, conversation}, conversation
        self._paint(index for index, hit in enumerate(self.hits) if hit.conversation.id in changed)

    def _paint(self, rows: Iterable[int]) -> None:
        look = make_look(self.app.theme_variables)
        for index in rows:
            hit = self.hits[index]
            self.replace_option_prompt_at_index(index, _row(hit, hit.conversation.id == self.current, look))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and new_value >= self.max_scroll_y - 2 * _AHEAD:
            self.post_message(self.NearEnd())


def _row(hit: Hit, current: bool, look: Look) -> Text:
    """Two lines: the title, and when it went on or where the search found it."""
    mark = "● " if current else "  "
    title = _cut(" ".join(visible(hit.conversation.title).split()), WIDTH - 2)
    below = " ".join(visible(hit.excerpt).split()) or when(hit.conversation.changed, time.time())
    return Text.assemble(
        (mark, look.accent), (title, "bold" if current else ""), "\n  ", (_cut(below, WIDTH - 2), look.muted)
    )


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def when(moment: float, now: float) -> str:
    """A time as it is best told: today's by the hour, this week's by the day, others by the date."""
    then, today = time.localtime(moment), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if 0 <= now - moment < 6 * 86400:
        return time.strftime("%A %H:%M", then)
    return time.strftime("%Y-%m-%d", then)
