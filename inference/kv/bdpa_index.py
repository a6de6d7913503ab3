"""Which basis row and which difference slot each token of a sequence has: book-keeping of the bdpa layout.

The first occurrence of a token id takes the next basis row, every later one the next difference slot. So after
n tokens the numbers of rows and of slots add up to n, and the entry of the last token tells both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.errors import LayoutUnavailable

NO_SLOT = 2**32 - 1
"""Stands for the slot of a token that is a basis row itself."""


class BasisIndex:
    """The tokens whose ids are known, from the first on without a gap."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []
        self._row_ids: list[int] = []
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        """How many tokens are known."""
        return len(self._entries)

    def note(self, position: int, ids: Sequence[int]) -> None:
        """The tokens from `position` on, in place of what was known of them.

        Raises LayoutUnavailable where those before `position` are not all known.
        """
        self.require(position)
        self.truncate(position)
        for token in ids:
            row = self._rows.get(token)
            if row is None:
                self._rows[token] = len(self._row_ids)
                self._entries.append((len(self._row_ids), NO_SLOT))
                self._row_ids.append(token)
            else:
                self._entries.append((row, len(self) - len(self._row_ids)))

    def require(self, tokens: int) -> None:
        """Raises LayoutUnavailable where the ids of the first `tokens` tokens are not all known."""
        if tokens > len(self):
            raise LayoutUnavailable(
                f"the KV layout bdpa needs the id of every token: of {tokens} tokens only the first {len(self)} have "
                "known ids; choose another --kv"
            )

    def counts(self, tokens: int) -> tuple[int, int]:
        """Basis rows and difference slots of the first `tokens` tokens; beyond the known ones the most of each."""
        known = min(tokens, len(self))
        rows = 0
        if known:
            row, slot = self._entries[known - 1]
            rows = row + 1 if slot == NO_SLOT else known - 1 - slot
        return rows + tokens - known, tokens - rows

    def entries(self, first: int, end: int) -> np.ndarray:
        """(basis row, difference slot or NO_SLOT) of positions first .. end - 1, int64 (end - first, 2)."""
        return np.array(self._entries[first:end], np.int64).reshape(-1, 2)

    def pairs(self, end: int) -> Sequence[tuple[int, int]]:
        """(basis row, difference slot or NO_SLOT) of the tokens known before position `end`."""
        return self._entries[:end]

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        if length < len(self):
            rows, _ = self.counts(length)
            for token in self._row_ids[rows:]:
                del self._rows[token]
            del self._row_ids[rows:], self._entries[length:]

    def copy(self) -> BasisIndex:
        """The same content, apart."""
        other = BasisIndex()
        other._entries, other._row_ids, other._rows = list(self._entries), list(self._row_ids), dict(self._rows)
        return other
