"""The text of one lane: only its last row is broken anew as it grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.theme import Look, make_look, on_theme

Kind = Literal["text", "thought", "mark"]


class LaneText(ScrollView):
    """Shows text that is fit for the screen, and follows its end unless the person has scrolled up."""

    DEFAULT_CSS = """
    LaneText {
        height: 1fr; padding: 0 1; background: $background; overflow-x: hidden;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    """
    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pieces: list[tuple[str, Kind]] = []
        self._rows: list[Strip] = []
        self._last = Text()
        self._made_for: tuple[int, Look] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for text, _ in self._pieces)

    @property
    def marked(self) -> str:
        """What of it is marked."""
        return "".join(text for text, kind in self._pieces if kind == "mark")

    def feed(self, pieces: Iterable[tuple[str, Kind]]) -> None:
        """Add pieces of text."""
        new = list(pieces)
        self._pieces += new
        if new:
            self._lay_out(new)

    def on_resize(self) -> None:
        self._lay_out(())

    def on_mount(self) -> None:
        on_theme(self, lambda: self._lay_out(()))

    def _lay_out(self, new: Iterable[tuple[str, Kind]]) -> None:
        """Lay out the new pieces, or all of them for another width or other colours."""
        width = self.scrollable_content_region.width
        if width < 1:
            return
        follows = self.scroll_offset.y >= self.max_scroll_y - 1
        made_for = width, make_look(self.app.theme_variables)
        if made_for != self._made_for:
            self._made_for, self._rows, self._last, new = made_for, [], Text(), self._pieces
        for piece, kind in new:
            first, *lines = piece.split("\n")
            style = _style(kind, made_for[1])
            self._last.append(first, style)
            for line in lines:
                self._break()
                self._rows.append(self._strip(self._last))
                self._last = Text().append(line, style)
        self._break()
        self.virtual_size = Size(width, len(self._rows) + 1)
        if follows:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def _break(self) -> None:
        """Keep of the text since the last row that is full only what may still grow."""
        assert self._made_for is not None
        self._last.overflow = "fold"
        *full, last = self._last.wrap(_console(), self._made_for[0], tab_size=4) or [self._last]
        self._rows += map(self._strip, full)
        self._last = last

    def _strip(self, row: Text) -> Strip:
        assert self._made_for is not None
        width, look = self._made_for
        return Strip(row.render(_console())).adjust_cell_length(width, look.text)

    def render_line(self, y: int) -> Strip:
        row, look = y + self.scroll_offset.y, make_look(self.app.theme_variables)
        if self._made_for is None or row > len(self._rows):
            return Strip.blank(self.size.width, look.text)
        return self._rows[row] if row < len(self._rows) else self._strip(self._last)


def _style(kind: Kind, look: Look) -> Style:
    match kind:
        case "text":
            return look.text
        case "thought":
            return look.text + look.muted
        case "mark":
            return look.text + look.accent + Style(bold=True, reverse=True)


def _console() -> Console:
    """A console that is only laid out with, never printed to."""
    return Console(color_system="truecolor", force_terminal=True, legacy_windows=False)
