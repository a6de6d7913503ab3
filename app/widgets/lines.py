"""Lines of the transcript: a margin, the text, and space up to the width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from app.theme import Look

GUTTER = 2  # empty cells left of all text
MAX_WIDTH = 108  # longer lines are hard to read

Line = list[Segment]


def inner_width(width: int) -> int:
    """The cells that text may take of a line of `width`."""
    return max(8, min(width, MAX_WIDTH) - GUTTER - 1)


def strips(lines: Iterable[Line], width: int, look: Look) -> Iterator[Strip]:
    """The lines as strips of `width` cells."""
    margin = Segment(" " * GUTTER)
    for line in lines:
        segments = [margin, *line] if line else []
        styled = [Segment(text, look.text + style if style else look.text) for text, style, _ in segments if text]
        yield Strip(styled).simplify().adjust_cell_length(width, look.text)


def restyled(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """`strip` with the characters from `start` to `end` (-1: to the end) in that style."""
    text = strip.text
    first = cell_len(text[:start])
    last = strip.cell_length if end == -1 else cell_len(text[:end])
    middle = Strip(Segment.apply_style(strip.crop(first, last), post_style=style), last - first)
    return Strip.join([strip.crop(0, first), middle, strip.crop(last)])
