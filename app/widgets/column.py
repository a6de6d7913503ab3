"""What the transcript shows, below each other: items, the message each belongs to, and their lines at one width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.text import Text
from textual.strip import Strip

from app.theme import Look
from app.widgets.render import Item, Laid, Note, lay_out


@dataclass(frozen=True)
class Entry:
    """An item, and the id of the message that it is part of; None for what the application says."""

    item: Item
    message: int | None = None


class Column:
    """Entries and their lines. `laid` has one for each entry, or none at all while no width is known."""

    def __init__(self, entries: Sequence[Entry] = (), laid: Sequence[Laid] = ()) -> None:
        self.entries = list(entries)
        self.laid = list(laid)
        self.lines = strips(self.laid)

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

    def insert_above(self, entries: Sequence[Entry], laid: Sequence[Laid]) -> int:
        """Add entries above the first message; returns how many rows they take."""
        index = next((index for index, entry in enumerate(self.entries) if entry.message is not None), 0)
        row, new = sum(len(each.strips) for each in self.laid[:index]), strips(laid)
        self.entries[index:index] = entries
        self.laid[index:index] = laid
        self.lines[row:row] = new
        return len(new)

    def cut(self, message: int) -> None:
        """Take away the message and all that is below it."""
        index = next((index for index, entry in enumerate(self.entries) if entry.message == message), None)
        if index is not None:
            row = sum(len(each.strips) for each in self.laid[:index])
            del self.entries[index:], self.laid[index:], self.lines[row:]

    def claim(self, first: Item, message: int) -> None:
        """Make the entries from the one with `first` on part of a message."""
        index = next(index for index, entry in enumerate(self.entries) if entry.item is first)
        self.entries[index:] = [replace(entry, message=message) for entry in self.entries[index:]]

    def rows(self, message: int) -> range:
        """The rows of a message."""
        start = row = 0
        found = False
        for entry, laid in zip(self.entries, self.laid, strict=False):
            if entry.message == message and not found:
                start, found = row, True
            elif entry.message != message and found:
                break
            row += len(laid.strips)
        return range(start, row) if found else range(0)

    def at(self, row: int) -> tuple[int, int] | None:
        """The index of the entry in that row, and the row within it."""
        for index, laid in enumerate(self.laid):
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


def strips(laid: Sequence[Laid]) -> list[Strip]:
    """The lines of items that follow each other."""
    return [strip for each in laid for strip in each.strips]
