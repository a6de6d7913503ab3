"""KV caches: what every layout offers, and the cache of one sequence, which may mix layouts by layer.

A store keeps the keys and values of some layers in one layout on one device. A KvCache is the stores of
all layers together with the number of tokens they hold; token i stands at position i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from inference.errors import ContextFull, DoesNotFit
from inference.events import KvGroupStats, KvStats

GROWTH_STEP = 1024
"""Tokens by which memory for keys and values grows; also the smallest capacity."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a layout, and why they have it. `window` is that of all of them, None for the whole context.

    `hot` is for the tiered layouts: how many tokens, the last ones, at least stay out of cold pages. `device` is where
    these caches lie, of a model that is split between devices.
    """

    layout: str
    layers: tuple[int, ...]
    window: int | None
    reason: str
    hot: int = 0
    device: str = ""


class Store(Protocol):
    """Keys and values of some layers in one layout."""

    group: LayerGroup

    def missing(self, tokens: int, length: int) -> bool:
        """Whether `ensure` would take memory for `tokens` tokens in all, of which `length` are held."""

    def ensure(self, tokens: int, length: int) -> None:
        """Make room for `tokens` tokens in all, of which `length` are held. Raises DoesNotFit and takes nothing."""

    def begin(self, length: int) -> None:
        """A step begins behind the `length` tokens that are held; `ensure` has made room for it."""

    def truncate(self, length: int, present: int) -> int:
        """Forget all of the `present` tokens from position `length` on. Returns how many are kept: 0 where keys
        that the next query needs are no longer held, else `length`."""

    def fork(self, length: int) -> Self:
        """An independent store with the same `length` tokens."""

    def stats(self, length: int, context: int) -> KvGroupStats:
        """Bytes and tokens."""

    def cells(self, length: int) -> str:
        """What stands in each place set aside, a letter of inference.events.KV_STATES each (see KvMapGroup.cells).

        A ring tells itself what is outside its window; for other layouts that is the map's affair.
        """

    def close(self) -> None:
        """Free the memory. The store is empty afterwards and can be used again."""


@runtime_checkable
class TokenReader(Protocol):
    """A store that must know the ids of its tokens."""

    def note(self, position: int, ids: Sequence[int]) -> None:
        """The tokens from `position` on are `ids`. Those of a step whose ids the device draws come afterwards."""


AnyStore = TypeVar("AnyStore", bound=Store)


class KvCache(Generic[AnyStore]):
    """The stores of one sequence. `programs` is for the executor: what it built for the stores' present buffers."""

    def __init__(self, stores: Sequence[AnyStore], context: int) -> None:
        self.stores = tuple(stores)
        self.context = context
        self.length = 0
        self.programs: dict[Any, Any] = {}
        self._by_layer = {layer: store for store in self.stores for layer in store.group.layers}

    def store(self, layer: int) -> AnyStore:
        """The store that holds a layer."""
        return self._by_layer[layer]

    def missing(self, tokens: int) -> bool:
        """Whether `ensure(tokens)` would take more memory."""
        return any(store.missing(tokens, self.length) for store in self.stores)

    def ensure(self, tokens: int) -> None:
        """Make room for `tokens` in all. Raises ContextFull above `context`, DoesNotFit above the memory."""
        if tokens > self.context:
            raise ContextFull(f"{tokens} tokens exceed the context of {self.context}")
        for store in self.stores:
            if store.missing(tokens, self.length):
                store.ensure(tokens, self.length)

    def note(self, position: int, ids: Sequence[int]) -> None:
        """Tell the stores that need them which ids stand at `position` and after it."""
        for store in self.stores:
            if isinstance(store, TokenReader):
                store.note(position, ids)

    def begin(self) -> None:
        """Tell the stores that a step begins behind the tokens held."""
        for store in self.stores:
            store.begin(self.length)

    def truncate(self, length: int) -> int:
        """Forget all tokens from position `length` on; returns how many are kept.

        That is 0 where a store no longer holds what the next query would need: the caller computes them anew.
        """
        length = min(length, self.length)
        kept = min(store.truncate(length, self.length) for store in self.stores)
        if kept < length:
            for store in self.stores:
                store.truncate(kept, length)
        self.length = kept
        return kept

    def fork(self) -> Self:
        """An independent cache with the same content. Raises DoesNotFit and takes nothing."""
        stores: list[AnyStore] = []
        try:
            for store in self.stores:
                stores.append(store.fork(self.length))
        except DoesNotFit:
            for store in stores:
                store.close()
            raise
        other = type(self)(stores, self.context)
        other.length = self.length
        return other

    def stats(self) -> KvStats:
        """Tokens, bytes and layouts."""
        groups = tuple(store.stats(self.length, self.context) for store in self.stores)
        return KvStats(
            layout=describe_groups([store.group for store in self.stores]),
            tokens=self.length,
            context=self.context,
            used_bytes=sum(group.used_bytes for group in groups),
            allocated_bytes=sum(group.allocated_bytes for group in groups),
            capacity_bytes=sum(group.capacity_bytes for group in groups),
            groups=groups,
        )

    def close(self) -> None:
        """Free the memory. The cache is empty afterwards and can be used again."""
        for store in self.stores:
            store.close()
        self.programs.clear()
        self.length = 0


def describe_groups(groups: Sequence[LayerGroup]) -> str:
    """ "paged" where all layers share it, else "ring (15 layers), paged (3 layers)"."""
    if len(groups) == 1 and not groups[0].device:
        return groups[0].layout
    return ", ".join(map(describe_group, groups))


def describe_group(group: LayerGroup) -> str:
    """ "ring (15 layers)", "ring (15 layers on webgpu)"."""
    return f"{group.layout} ({len(group.layers)} layers{group.device and f' on {group.device}'})"


def grown_capacity(tokens: int, context: int) -> int:
    """The capacity for `tokens`: whole steps, never more than the context."""
    return min(context, -(-tokens // GROWTH_STEP) * GROWTH_STEP)
