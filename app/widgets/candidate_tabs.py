"""One line of tabs, each with figures that change while it is looked at."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from app.theme import make_look


class CandidateTabs(Widget):
    """Draws `labels` as tabs, of which `chosen` is marked.

    Textual's own tabs lay the whole screen out again for each new label, which is too much many times a second.
    """

    DEFAULT_CSS = """
    CandidateTabs { height: 1; background: $background; }
    """

    labels: reactive[tuple[str, ...]] = reactive(())
    chosen: reactive[int] = reactive(0)

    class Clicked(Message):
        """A tab was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def render(self) -> Text:
        look = make_look(self.app.theme_variables)
        chosen = look.primary + Style(bold=True, reverse=True)
        line = Text(no_wrap=True, overflow="ellipsis")
        for index, label in enumerate(self.labels):
            line.append(f" {label} ", chosen if index == self.chosen else look.muted)
            line.append(" ")
        return line

    def on_click(self, event: events.Click) -> None:
        at = tab_at(self.labels, event.x)
        if at is not None:
            self.post_message(self.Clicked(at))


def tab_at(labels: Sequence[str], cell: int) -> int | None:
    """Which tab stands at a cell of the line, None between two and after the last."""
    start = 0
    for index, label in enumerate(labels):
        width = cell_len(label) + 2
        if start <= cell < start + width:
            return index
        start += width + 1
    return None
