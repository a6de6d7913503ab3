"""What the transcript shows, below each other: items, the message each belongs to, and their lines at one width.

Only the end is laid out, and what is above it as far as the person scrolls: a message of any length is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.text import Text
from textual.strip import Strip

from app.theme import Look
from app.widgets.markdown_blocks import Block
from app.widgets.render import Item, Laid, Note, lay_out


@dataclass(frozen=True)
class Entry:
    """An item, and the id of the message that it is part of; None for what the application says."""

    item: Item
    message: int | None = None


class Column:
    """Entries and their lines. `laid` has one for each of the last entries; for none while no width is known."""

    def __init__(self, entries: Sequence[Entry] = (), laid: Sequence[Laid] = ()) -> None:
        self.entries = list(entries)
        self.laid = list(laid)
        self.lines = strips(self.laid)

    @property
    def first_laid(self) -> int:
        """The index of the first entry that is laid out."""
        return len(self.entries) - len(self.laid)

    @property
    def carry(self) -> Text | None:
        """The line that the next item goes on from, if it goes on."""
        return self.laid[-1].carry if self.laid else None

    @property
    def first_message(self) -> int | None:
        """The first message that any entry belongs to."""
        return next((entry.message for entry in self.entries if entry.message is not None), None)

    def joined(self, item: Item) -> Item:
        """`item` as it follows what is here: notices that follow each other have no empty line between."""
        last = self.entries[-1].item if self.entries else None
        if isinstance(item, Note) and isinstance(last, Note) and item.kind == last.kind == "notice":
            return replace(item, gap=False)
        return item

    def append(self, entry: Entry, laid: Laid | None) -> None:
        """Add an entry below all others."""
        self.entries.append(entry)
        if laid is not None:
            self.laid.append(laid)
            self.lines += laid.strips

    def extend(self, entries: Sequence[Entry], laid: Sequence[Laid]) -> None:
        """Add entries, of which the last are laid out, below all others."""
        self._insert(len(self.entries), entries, laid)

    def insert_above(self, entries: Sequence[Entry], laid: Sequence[Laid]) -> int:
        """Add entries, of which the last are laid out, above the first message; returns how many rows that adds."""
        before = len(self.lines)
        index = next((index for index, entry in enumerate(self.entries) if entry.message is not None), 0)
        self._insert(index, entries, laid)
        return len(self.lines) - before

    def _insert(self, index: int, entries: Sequence[Entry], laid: Sequence[Laid]) -> None:
        at, row = index - self.first_laid, self.row(index)
        if at >= 0:
            # Above entries that are not laid out none can be.
            first, begin = (at, row) if len(laid) == len(entries) else (0, 0)
            self.laid[first:at] = laid
            self.lines[begin:row] = strips(laid)
        self.entries[index:index] = entries

    def forget_above(self, rows: int) -> None:
        """Let go of lines above the last `rows`: where a reply has become long, thousands that nobody looks at."""
        count, forgotten = len(self.laid), len(self.lines)
        while count > 0 and len(self.lines) - forgotten < rows:
            count -= 1
            forgotten -= len(self.laid[count].strips)
        del self.laid[:count], self.lines[:forgotten]

    def cut(self, message: int) -> None:
        """Take away the message and all that is below it."""
        index = next((index for index, entry in enumerate(self.entries) if entry.message == message), None)
        if index is not None:
            del self.lines[self.row(index) :], self.laid[max(0, index - self.first_laid) :], self.entries[index:]

    def claim(self, first: Item, message: int) -> None:
        """Make the entries from the one with `first` on part of a message."""
        index = next(index for index, entry in enumerate(self.entries) if entry.item is first)
        self.entries[index:] = [replace(entry, message=message) for entry in self.entries[index:]]

    def shows(self, message: int) -> bool:
        """Whether at least the end of a message is laid out."""
        return any(entry.message == message for entry in self.entries[self.first_laid :])

    def rows(self, message: int) -> range:
        """The rows of a message, as far as they are laid out."""
        start = row = 0
        found = False
        for entry, laid in zip(self.entries[self.first_laid :], self.laid, strict=True):
            if entry.message == message and not found:
                start, found = row, True
            elif entry.message != message and found:
                break
            row += len(laid.strips)
        return range(start, row) if found else range(0)

    def row(self, index: int) -> int:
        """The first row of an entry, 0 for one that is not laid out."""
        return sum(len(each.strips) for each in self.laid[: max(0, index - self.first_laid)])

    def at(self, row: int) -> tuple[int, int] | None:
        """The index of the entry in that row, and the row within it."""
        for index, laid in enumerate(self.laid, self.first_laid):
            if row < len(laid.strips):
                return index, row
            row -= len(laid.strips)
        return None


def lay_out_all(
    items: Sequence[Item], width: int, look: Look, carry: Text | None = None, known: Mapping[int, Laid] | None = None
) -> list[Laid]:
    """Lay out items that follow each other; `known` has those that need not be, by the identity of the item."""
    laid: list[Laid] = []
    for item in items:
        laid.append((known or {}).get(id(item)) or lay_out(item, width, look, carry))
        carry = laid[-1].carry
    return laid


def lay_out_end(
    items: Sequence[Item], width: int, look: Look, first: int, rows: int, known: Mapping[int, Laid] | None = None
) -> list[Laid]:
    """Lay out the items from `first` on, and above these so many as take `rows` rows; `known` as in `lay_out_all`."""
    pieces: list[list[Laid]] = []
    end, count = len(items), 0
    while end > 0 and (end > first or count < rows):
        start = end - 1
        while start > 0 and _goes_on(items[start - 1]):
            start -= 1
        pieces.append(lay_out_all(items[start:end], width, look, None, known))
        if end <= first:
            count += sum(len(each.strips) for each in pieces[-1])
        end = start
    return [each for piece in reversed(pieces) for each in piece]


def _goes_on(item: Item) -> bool:
    return isinstance(item, Block) and item.open_end


def strips(laid: Sequence[Laid]) -> list[Strip]:
    """The lines of items that follow each other."""
    return [strip for each in laid for strip in each.strips]
