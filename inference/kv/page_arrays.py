"""Pages in host memory: one array a layer, whose first axis is the page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from inference.kv.host_arrays import HostMemory
from inference.kv.layout import GROWTH_STEP
from inference.kv.page_pool import PAGE_TOKENS

GROWTH_PAGES = GROWTH_STEP // PAGE_TOKENS


class PageArrays:
    """(pages, PAGE_TOKENS, *token_shape) a layer, grown in steps."""

    def __init__(
        self, layers: Iterable[int], token_shape: tuple[int, ...], dtype: npt.DTypeLike, memory: HostMemory
    ) -> None:
        self._empty = np.zeros((0, PAGE_TOKENS, *token_shape), dtype)
        self._pages = dict.fromkeys(layers, self._empty)
        memory.register(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(pages.nbytes for pages in self._pages.values())

    def tokens(self, layer: int) -> np.ndarray:
        """A view of a layer by place: page number * PAGE_TOKENS + place in the page."""
        pages = self._pages[layer]
        return pages.reshape(-1, *pages.shape[2:])

    def grow(self, pages: int) -> None:
        """Make room for the pages numbered below `pages`."""
        pages = -(-pages // GROWTH_PAGES) * GROWTH_PAGES
        for layer, held in self._pages.items():
            if pages > len(held):
                more = np.zeros((pages - len(held), *held.shape[1:]), held.dtype)
                self._pages[layer] = np.concatenate((held, more))

    def copy(self, old: int, new: int) -> None:
        """Copy a page in all layers."""
        for pages in self._pages.values():
            pages[new] = pages[old]

    def clear(self) -> None:
        """Drop the pages."""
        self._pages = dict.fromkeys(self._pages, self._empty)
