"""Which pages of a pool are free, and how many sequences hold each: no memory, only the book-keeping.

A page holds PAGE_TOKENS tokens of every layer that uses the pool. A page with more than one holder is
never written: whoever wants to write it takes a copy first.
"""

from __future__ import annotations

from heapq import heappop, heappush

from inference.errors import DoesNotFit

PAGE_TOKENS = 32


def pages_for(tokens: int) -> int:
    """Pages that `tokens` tokens take."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """Page numbers 0 .. capacity - 1 with reference counts. Freed pages are handed out again, lowest first."""

    def __init__(self, max_pages: int, page_tokens: int = PAGE_TOKENS) -> None:
        self.max_pages = max_pages
        self.page_tokens = page_tokens
        self._holders: list[int] = []
        self._free: list[int] = []

    @property
    def capacity(self) -> int:
        """Pages that exist, held or free."""
        return len(self._holders)

    @property
    def held(self) -> int:
        """Pages with at least one holder."""
        return len(self._holders) - len(self._free)

    def holders(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._holders[page]

    def require(self, pages: int) -> None:
        """Raises DoesNotFit, before anything is taken, where fewer than `pages` more can be had."""
        available = self.max_pages - self.held
        if pages > available:
            raise DoesNotFit(
                f"the KV cache needs {pages} more pages of {self.page_tokens} tokens, {available} of "
                f"{self.max_pages} are left; shorten or close a conversation, or choose a smaller --context"
            )

    def allocate(self) -> int:
        """A page with one holder. Raises DoesNotFit where all are taken."""
        if self._free:
            page = heappop(self._free)
            self._holders[page] = 1
            return page
        self.require(1)
        self._holders.append(1)
        return len(self._holders) - 1

    def share(self, page: int) -> None:
        """One holder more."""
        if self._holders[page] == 0:
            raise ValueError(f"page {page} is free and cannot be shared")
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; a page without any is free."""
        if self._holders[page] == 0:
            raise ValueError(f"page {page} is free already")
        self._holders[page] -= 1
        if self._holders[page] == 0:
            heappush(self._free, page)
