"""A text area that takes each grapheme cluster for one character: cursor, deletion, wrapping, clicks.

Textual's own goes by code points, which tears emoji and accented letters apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from rich.segment import Segment
from textual.document._document import Location
from textual.document._document_navigator import DocumentNavigator
from textual.document._wrapped_document import WrappedDocument
from textual.strip import Strip
from textual.widgets import TextArea

from app.graphemes import break_points, cluster_cells, cluster_starts


class ClusterWrap(WrappedDocument):
    """Wraps between clusters. Every edit wraps the whole text: lines that are as they were come from a cache."""

    def wrap(self, width: int, tab_width: int | None = None) -> None:
        self._width = width
        self._tab_width = tab_width or self._tab_width
        lines = self.document.lines
        self._wrap_offsets = [list(break_points(line, width, self._tab_width)) for line in lines]
        self._tab_width_cache = [_tab_widths(line, self._tab_width) for line in lines]
        self._offset_to_line_info = []
        self._line_index_to_offsets = []
        for index, points in enumerate(self._wrap_offsets):
            top = len(self._offset_to_line_info)
            self._line_index_to_offsets.append(list(range(top, top + len(points) + 1)))
            self._offset_to_line_info += [(index, section) for section in range(len(points) + 1)]

    def wrap_range(self, start: Location, old_end: Location, new_end: Location) -> None:
        self.wrap(self._width)

    def get_target_document_column(self, line_index: int, x_offset: int, y_offset: int) -> int:
        line = self.document[line_index]
        edges = [0, *self.get_offsets(line_index), len(line)]
        section = y_offset % (len(edges) - 1)
        begin, end = edges[section], edges[section + 1]
        at, last = 0, begin
        for start, size in cluster_cells(line, self._tab_width):
            if not begin <= start < end:
                continue
            last, at = start, at + size
            if at > x_offset:
                return start
        # After the end of the line there is a place for the cursor; after that of another row there is none.
        return end if end == len(line) else last


def _tab_widths(line: str, tab_size: int) -> list[int]:
    return [size for start, size in cluster_cells(line, tab_size) if line[start] == "\t"] if "\t" in line else []


class ClusterArea(TextArea):
    """`atoms` may make longer stretches of a line single characters too."""

    def atoms(self, line: str) -> Sequence[tuple[int, int]]:
        """Stretches of a line, as (start, end), that the cursor does not enter."""
        return ()

    def _edges(self, row: int) -> Sequence[int]:
        line = self.document[row]
        starts: Sequence[int] = cluster_starts(line)
        for begin, end in self.atoms(line):
            starts = [start for start in starts if not begin < start < end]
        return starts

    def _snap(self, location: Location, up: bool = False) -> Location:
        row, column = location
        edges = self._edges(row)
        return row, edges[bisect_left(edges, column) if up else bisect_right(edges, column) - 1]

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        self.wrapped_document = ClusterWrap(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self._rewrap_and_refresh_virtual_size()

    def clamp_visitable(self, location: Location) -> Location:
        return self._snap(super().clamp_visitable(location))

    def get_cursor_left_location(self) -> Location:
        row, column = self.cursor_location
        return self._snap((row, column - 1)) if column else super().get_cursor_left_location()

    def get_cursor_right_location(self) -> Location:
        row, column = self.cursor_location
        at_end = column >= len(self.document[row])
        return super().get_cursor_right_location() if at_end else self._snap((row, column + 1), up=True)

    def get_cursor_word_left_location(self) -> Location:
        return self._snap(super().get_cursor_word_left_location())

    def get_cursor_word_right_location(self) -> Location:
        return self._snap(super().get_cursor_word_right_location(), up=True)

    def render_line(self, y: int) -> Strip:
        return _whole_clusters(super().render_line(y))


def _whole_clusters(strip: Strip) -> Strip:
    """The strip with each cluster in one segment, as the first of its code points looks: so does the cursor."""
    text = strip.text
    if text.isascii():
        return strip
    starts = cluster_starts(text)
    segments: list[Segment] = []
    at = 0
    for part, style, _ in strip:
        torn = starts[bisect_left(starts, at)] - at
        if segments and torn:
            before = segments[-1]
            segments[-1] = Segment(before.text + part[:torn], before.style)
        if rest := part[torn:]:
            segments.append(Segment(rest, style))
        at += len(part)
    return Strip(segments, strip.cell_length)
