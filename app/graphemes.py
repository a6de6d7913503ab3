"""Characters as people see them: grapheme clusters, which may be many code points, and the cells they take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len


def cluster_starts(text: str) -> tuple[int, ...] | range:
    """Where each grapheme cluster of a line begins (Unicode's UAX 29), and the end of the line."""
    return range(len(text) + 1) if text.isascii() else _cluster_starts(text)


@lru_cache(maxsize=256)
def _cluster_starts(text: str) -> tuple[int, ...]:
    # Imported late: it takes 17 ms, and most of what is typed does not need it.
    import regex

    return (*(match.start() for match in regex.finditer(r"\X", text)), len(text))


@lru_cache(maxsize=4096)
def break_points(line: str, width: int, tab_size: int) -> tuple[int, ...]:
    """Where to break a line so that no part takes more than `width` cells.

    It is broken between words, and within a word only where that is too wide by itself; clusters are never torn.
    """
    if not width or (line.isascii() and "\t" not in line and len(line) <= width):
        return ()
    points: list[int] = []
    used = 0
    for word in _words(line, cluster_cells(line, tab_size)):
        wide = sum(size for _, size in word)
        if used + wide <= width:
            used += wide
            continue
        if used:
            points.append(word[0][0])
        used, part = 0, word[0][0]
        for start, size in word:
            if start > part and used + size > width:
                points.append(start)
                used, part = 0, start
            used += size
    return tuple(points)


def _words(line: str, cells: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The clusters word by word, with the spaces after each."""
    word: list[tuple[int, int]] = []
    after_space = False
    for (start, size), (end, _) in pairwise([*cells, (len(line), 0)]):
        is_space = line[start:end].isspace()
        if after_space and not is_space:
            yield word
            word = []
        word.append((start, size))
        after_space = is_space
    yield word


def cluster_cells(line: str, tab_size: int) -> list[tuple[int, int]]:
    """The start of each cluster and the cells that it takes; a tab reaches to the next multiple of `tab_size`."""
    starts = cluster_starts(line)
    found: list[tuple[int, int]] = []
    at = 0
    for start, end in pairwise(starts):
        text = line[start:end]
        size = tab_size - at % tab_size if text == "\t" else cell_len(text)
        found.append((start, size))
        at += size
    return found
