"""The text of one lane: lines that are broken anew only where they grow, with what is marked in them."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.theme import Look, make_look

Kind = Literal["text", "thought", "mark"]


class LaneText(ScrollView):
    """Shows text that is fit for the screen, and follows its end unless the person has scrolled up."""

    DEFAULT_CSS = """
    LaneText { height: 1fr; padding: 0 1; background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """
    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[list[tuple[str, Kind]]] = [[]]
        self._done: list[Strip] = []
        self._growing: list[Strip] = []
        self._laid = 0
        self._made_for: tuple[int, Look] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join("".join(piece for piece, _ in line) for line in self._lines)

    @property
    def marked(self) -> str:
        """What of it is marked."""
        return "\n".join("".join(piece for piece, kind in line if kind == "mark") for line in self._lines).strip("\n")

    def feed(self, text: str, kind: Kind) -> None:
        """Add text of one kind."""
        first, *rest = text.split("\n")
        if first:
            self._lines[-1].append((first, kind))
        self._lines += [[(line, kind)] if line else [] for line in rest]
        if self.is_mounted and text:
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._lay_out()

    def _lay_out(self) -> None:
        width, look = self.scrollable_content_region.width, make_look(self.app.theme_variables)
        if width < 1:
            return
        if self._made_for != (width, look):
            self._made_for, self._done, self._laid = (width, look), [], 0
        follows = self.scroll_offset.y >= self.max_scroll_y - 1
        for line in self._lines[self._laid : -1]:
            self._done += _broken(line, width, look)
        self._laid = len(self._lines) - 1
        self._growing = _broken(self._lines[-1], width, look)
        self.virtual_size = Size(width, len(self._done) + len(self._growing))
        if follows:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row = y + self.scroll_offset.y
        lines = self._done if row < len(self._done) else self._growing
        row -= 0 if lines is self._done else len(self._done)
        if row >= len(lines):
            return Strip.blank(self.size.width, make_look(self.app.theme_variables).text)
        return lines[row]


def _broken(line: list[tuple[str, Kind]], width: int, look: Look) -> list[Strip]:
    """One line of text as the lines of the screen that it takes."""
    styles: dict[Kind, Style] = {
        "text": look.text,
        "thought": look.text + look.muted,
        "mark": look.text + look.accent + Style(bold=True, reverse=True),
    }
    text = Text.assemble(*((piece, styles[kind]) for piece, kind in line), overflow="fold")
    console = Console(width=width, color_system="truecolor", force_terminal=True, legacy_windows=False)
    return [
        Strip(part.render(console)).adjust_cell_length(width, look.text)
        for part in text.wrap(console, width, tab_size=4)
    ] or [Strip.blank(width, look.text)]
