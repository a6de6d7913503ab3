"""Page pools and page tables: no leak, no double free, no page written while others hold it, all pages or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from inference.errors import DoesNotFit
from inference.kv.page_pool import PAGE_TOKENS, PagePool, pages_for
from inference.kv.paged import PageTable

MAX_PAGES = 24


@dataclass
class Memory:
    """Pages of tokens, up to a limit below the pool's own, as where the device has less memory than pages may take."""

    limit: int = MAX_PAGES
    pages: list[list[int | None]] = field(default_factory=list)

    def grow(self, pages: int) -> None:
        if pages > self.limit:
            raise DoesNotFit("no memory")
        while len(self.pages) < pages:
            self.pages.append([None] * PAGE_TOKENS)

    def copy(self, old: int, new: int) -> None:
        self.pages[new] = list(self.pages[old])


@dataclass(eq=False)
class Held:
    """A table and the tokens that were put into its pages."""

    table: PageTable
    tokens: list[int] = field(default_factory=list)


class Pages(RuleBasedStateMachine):
    """Sequences of one pool, whose tokens are all different; what the pages hold is checked after every step."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(MAX_PAGES)
        self.memory = Memory()
        self.held: list[Held] = []
        self.new_token = count().__next__

    @rule(target=sequences)
    def open(self) -> Held:
        self.held.append(Held(PageTable(self.pool)))
        return self.held[-1]

    @rule(sequence=sequences, more=st.integers(1, 70), unused=st.integers(0, 70))
    def append(self, sequence: Held, more: int, unused: int) -> None:
        """Append `more` tokens, with room for `unused` ones besides: a step that failed after it had made room."""
        table, length = sequence.table, len(sequence.tokens)
        pages, held, existing = list(table.pages), self.pool.held, self.pool.capacity
        needed = table.needs(length + more + unused, length)
        try:
            changed = table.extend(length + more + unused, length, self.memory)
        except DoesNotFit:
            assert needed
            assert (table.pages, self.pool.held) == (pages, held), "a refusal took pages"
            return
        assert changed == needed == (table.pages != pages)
        if self.pool.capacity > existing:
            assert self.pool.held == self.pool.capacity, "a new page was made while others were free"
        for position in range(length, length + more):
            page = table.pages[position // PAGE_TOKENS]
            assert self.pool.holders(page) == 1, "a page was written that others hold"
            token = self.new_token()
            self.memory.pages[page][position % PAGE_TOKENS] = token
            sequence.tokens.append(token)

    @rule(sequence=sequences, part=st.floats(0, 1))
    def truncate(self, sequence: Held, part: float) -> None:
        length = round(part * len(sequence.tokens))
        sequence.table.truncate(length)
        del sequence.tokens[length:]
        assert len(sequence.table.pages) == pages_for(length)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Held) -> Held:
        held = self.pool.held
        self.held.append(Held(sequence.table.fork(len(sequence.tokens)), list(sequence.tokens)))
        assert self.pool.held == held, "a fork took pages"
        return self.held[-1]

    @rule(sequence=consumes(sequences))
    def close(self, sequence: Held) -> None:
        sequence.table.truncate(0)
        self.held.remove(sequence)

    @precondition(lambda self: self.pool.held < MAX_PAGES)
    @rule(spare=st.integers(-4, MAX_PAGES))
    def limit_memory(self, spare: int) -> None:
        self.memory.limit = max(len(self.memory.pages), min(MAX_PAGES, self.pool.held + spare))

    @invariant()
    def sequences_hold_their_tokens(self) -> None:
        for sequence in self.held:
            slots = [token for page in sequence.table.pages for token in self.memory.pages[page]]
            assert slots[: len(sequence.tokens)] == sequence.tokens

    @invariant()
    def pages_are_counted(self) -> None:
        held = [page for sequence in self.held for page in sequence.table.pages]
        assert all(len(set(sequence.table.pages)) == len(sequence.table.pages) for sequence in self.held)
        assert [self.pool.holders(page) for page in range(self.pool.capacity)] == [
            held.count(page) for page in range(self.pool.capacity)
        ]
        assert self.pool.held == len(set(held)), "pages leaked"
        assert self.pool.capacity <= MAX_PAGES


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_an_error_comes_before_pages_are_taken() -> None:
    pool, memory = PagePool(4), Memory()
    table, other = PageTable(pool), PageTable(pool)
    table.extend(3 * PAGE_TOKENS, 0, memory)
    with pytest.raises(DoesNotFit, match="needs 2 more pages of 32 tokens, 1 of 4 are left") as caught:
        other.extend(PAGE_TOKENS + 1, 0, memory)
    assert "\n" not in str(caught.value)
    assert (other.pages, pool.held, pool.capacity) == ([], 3, 3)
    other.extend(PAGE_TOKENS, 0, memory)
    assert pool.held == 4


def test_a_copy_that_does_not_fit_leaves_the_pages_shared() -> None:
    pool, memory = PagePool(1), Memory()
    table = PageTable(pool)
    table.extend(5, 0, memory)
    fork = table.fork(5)
    with pytest.raises(DoesNotFit):
        fork.extend(6, 5, memory)
    assert fork.pages == table.pages and pool.holders(table.pages[0]) == 2


def test_freed_pages_are_handed_out_again_lowest_first() -> None:
    pool = PagePool(8)
    assert [pool.allocate() for _ in range(5)] == [0, 1, 2, 3, 4]
    for page in (3, 1, 2):
        pool.release(page)
    assert [pool.allocate() for _ in range(4)] == [1, 2, 3, 5]


def test_pages_that_are_free_are_neither_freed_nor_shared() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.release(page)
    with pytest.raises(ValueError, match="page 0 is free already"):
        pool.release(page)
    with pytest.raises(ValueError, match="page 0 is free and cannot be shared"):
        pool.share(page)
    assert (pool.held, pool.allocate()) == (0, 0)
