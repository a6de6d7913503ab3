"""Tokens as flowing text, of which only the lines in sight are drawn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.panels.token_text import TokenFlow, TokenTexts
from app.theme import make_look
from inference.vocabulary import Vocabulary


class TokenView(ScrollView, can_focus=True, inherit_bindings=False):
    """`style` gives the look of a token by its place, `suffix` what stands in small print after it ("" for nothing).

    What keys do is up to the panel that it is in.
    """

    DEFAULT_CSS = """
    TokenView { background: $background; scrollbar-size: 0 1; scrollbar-gutter: stable; }
    """

    # As in Textual but without a layout of the whole screen at each change: that takes as long as many of them.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(self, style: Callable[[int], Style], suffix: Callable[[int], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._style = style
        self._suffix = suffix
        self._texts: TokenTexts | None = None
        self._shown: list[str] = []
        self._flow = TokenFlow(1)
        self._look = make_look({})
        self.cursor: int | None = None
        """The token that is marked, if any."""

    def begin(self, vocabulary: Vocabulary | None) -> None:
        """Forget all tokens; those that come are of `vocabulary`."""
        self._texts = None if vocabulary is None else TokenTexts(vocabulary)
        self._shown.clear()
        self.cursor = None
        self.lay_out()

    @property
    def count(self) -> int:
        """The tokens shown."""
        return len(self._shown)

    def append(self, ids: Sequence[int]) -> None:
        """Show more tokens."""
        if self._texts is None or not ids:
            return
        first = len(self._shown)
        self._shown += self._texts.push(ids)
        self._flow.push([self._whole(index) for index in range(first, len(self._shown))])
        self._changed()

    def lay_out(self) -> None:
        """Divide all tokens into lines anew: the width or the suffixes have changed."""
        self._flow = TokenFlow(max(8, self.scrollable_content_region.width))
        self._flow.push([self._whole(index) for index in range(len(self._shown))])
        self._changed()

    def _whole(self, index: int) -> str:
        return self._shown[index] + self._suffix(index)

    def _changed(self) -> None:
        self.virtual_size = Size(self._flow.width, len(self._flow.starts))
        self.refresh()

    def watch_virtual_size(self, old_size: Size, size: Size) -> None:
        self.vertical_scrollbar.window_virtual_size = size.height
        height = self.scrollable_content_region.height
        if (old_size.height > height) != (size.height > height):
            self.refresh(layout=True)  # the scroll bar comes or goes

    def on_resize(self) -> None:
        if self._flow.width != max(8, self.scrollable_content_region.width):
            self.lay_out()
            self.reveal()

    def line_of(self, index: int) -> int:
        """The line that a token stands in."""
        return bisect_right(self._flow.starts, index) - 1

    def token_at(self, line: int, column: int) -> int | None:
        """The token in a line at a cell, the last one where the cell is beyond it; None where no such line is."""
        if not 0 <= line < len(self._flow.starts):
            return None
        tokens = self._flow.tokens(line)
        for index in tokens:
            column -= cell_len(self._whole(index))
            if column < 0:
                return index
        return tokens[-1]

    def column_of(self, index: int) -> int:
        """The cell at which a token begins."""
        return sum(cell_len(self._whole(each)) for each in range(self._flow.starts[self.line_of(index)], index))

    def reveal(self) -> None:
        """Scroll to the marked token, or to the end where none is."""
        if self.cursor is None:
            self.scroll_end(animate=False)
            return
        line, top, height = self.line_of(self.cursor), self.scroll_offset.y, self.scrollable_content_region.height
        if not top <= line < top + height:
            self.scroll_to(y=line if line < top else line - height + 1, animate=False)

    def render_lines(self, crop: Region) -> list[Strip]:
        self._look = make_look(self.app.theme_variables)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        look = self._look
        line, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        segments = []
        if line < len(self._flow.starts):
            for index in self._flow.tokens(line):
                style = self._style(index)
                if index == self.cursor:
                    style += Style(reverse=True, bold=True)
                text, suffix = self._shown[index], self._suffix(index)
                if cell_len(text) > width:
                    text = set_cell_size(text, max(1, width - cell_len(suffix) - 1)) + "…"
                segments.append(Segment(text, look.text + style))
                if suffix:
                    segments.append(Segment(suffix, look.text + look.muted))
        return Strip(segments).adjust_cell_length(width, look.text)
