"""Which positions a ring holds, against a model that remembers what was written to each slot."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kv.ring import RingSlots


class Slots:
    """What lies in each slot, token by token; every token written is a new one."""

    def __init__(self, ring: RingSlots) -> None:
        self.capacity = ring.capacity
        self.slots: dict[int, int] = {}
        self.tokens: list[int] = []
        self._new_token = count().__next__

    def write(self, rows: int) -> None:
        for _ in range(rows):
            self.slots[len(self.tokens) % self.capacity] = token = self._new_token()
            self.tokens.append(token)

    def holds(self, first: int, end: int) -> bool:
        return all(self.slots[at % self.capacity] == self.tokens[at] for at in range(max(0, first), end))


@settings(max_examples=120, deadline=None)
@given(st.integers(2, 12), st.integers(1, 9), st.integers(0, 4), st.integers(1, 80), st.data())
def test_a_ring_knows_what_it_holds(window: int, chunk: int, in_flight: int, context: int, data: st.DataObject) -> None:
    """Every step finds what its rows see; going back succeeds just where the next query would find all its keys."""
    ring = RingSlots(window, chunk, in_flight, context)
    model = Slots(ring)
    written = 0
    for _ in range(data.draw(st.integers(1, 30))):
        length = len(model.tokens)
        if data.draw(st.booleans()) and length < context:
            model.write(data.draw(st.integers(1, min(chunk, context - length))))
            written = max(written, len(model.tokens))
            assert model.holds(length - window + 1, len(model.tokens)), "a step wrote over what it reads"
        else:
            back = data.draw(st.integers(0, length))
            held = model.holds(back - window + 1, back)
            assert held or written - back > chunk + in_flight, "what was in flight cannot be taken back"
            kept = back if held else 0
            assert ring.copy().truncate(back, length) == kept
            assert ring.truncate(back, length) == kept
            del model.tokens[kept:]
            if kept == 0:
                written = 0


def test_capacity_is_what_the_longest_step_needs() -> None:
    assert RingSlots(512, 256, 4, 8192).capacity == 512 + 256 - 1 + 4
    assert RingSlots(512, 256, 4, 300).capacity == 300
