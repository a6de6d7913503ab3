"""A sequence: the token ids of one conversation and the KV cache that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np

from inference.errors import ContextFull
from inference.events import KvMapGroup, KvStats
from inference.executor import Executor
from inference.kv.map import kv_map
from inference.sampling import Sampling


def common_prefix(a: Ids[int], b: Ids[int]) -> int:
    """How many leading ids are the same."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(a), len(b)))


class Sequence:
    """A KV state. `token_ids` is what the cache holds; the last sampled id is not in it yet, but in `next_ids`."""

    def __init__(self, executor: Executor[Any], cache: Any, ids: Ids[int] = ()) -> None:
        self._executor = executor
        self._cache = cache
        self._ids = list(ids)
        self._next: list[int] = []
        self._adapters = executor.adapters

    @property
    def stale(self) -> bool:
        """Whether the adapters have changed since the cache was filled, so that all it holds must be computed anew."""
        return bool(self._ids) and not self._adapters.same_as(self._executor.adapters)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def next_ids(self) -> tuple[int, ...]:
        """What a reply has after the ids of the cache, until it changes: none or one."""
        return tuple(self._next)

    @property
    def cache(self) -> Any:
        """The KV cache, for the executor."""
        return self._cache

    @property
    def context(self) -> int:
        return self._cache.context

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, ids: Ids[int]) -> np.ndarray:
        """Append ids (at least one); returns the logits after the last, float32 (vocab,). Raises ContextFull."""
        if not ids:
            raise ValueError("append needs at least one token id")
        self.check_ids(ids)
        self.check_room(len(self._ids) + len(ids))
        held = list(self._ids)
        *_, last = self.chunks(ids)
        for _ in self.prefill([*held[self.rewind(len(held)) :], *ids[: len(ids) - len(last)]]):
            pass
        logits = self._executor.forward(self._cache, last, "last")
        assert logits is not None
        self._ids += last
        return logits

    def set_ids(self, ids: Ids[int]) -> int:
        """Make the cache hold exactly `ids`; returns how many were there already (the longest common prefix)."""
        self.check_ids(ids)
        self.check_room(len(ids))
        reused = self.rewind(self.common_prefix(ids))
        for _ in self.prefill(ids[reused:]):
            pass
        return reused

    def prefill(self, ids: Ids[int]) -> Iterator[int]:
        """Append ids chunk by chunk without logits; yields the tokens done so far after each chunk."""
        done = 0
        for chunk in self.chunks(ids):
            self._executor.forward(self._cache, chunk, "none")
            self._ids += chunk
            done += len(chunk)
            yield done

    def settle(self, ids: Ids[int], following: Ids[int] = ()) -> None:
        """Record ids that the executor appended by itself, and forget what it computed beyond them.

        `following` are those sampled after them.
        """
        self._ids += ids
        self._next = list(following)
        self._cache.truncate(len(self._ids))

    def chunks(self, ids: Ids[int]) -> Iterator[list[int]]:
        """The ids in pieces that one step takes."""
        size = self._executor.chunk
        for start in range(0, len(ids), size):
            yield list(ids[start : start + size])

    def common_prefix(self, ids: Ids[int]) -> int:
        """How many leading ids are those that the cache holds."""
        return common_prefix(self._ids, ids)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on.

        A ring may have dropped what the next token sees, or the adapters may have changed; then the tokens before are
        computed anew.
        """
        if not 0 <= length <= len(self._ids):
            raise ValueError(f"cannot truncate to {length} tokens: the sequence holds {len(self._ids)}")
        kept = self._ids[:length]
        for _ in self.prefill(kept[self.rewind(length) :]):
            pass

    def rewind(self, length: int) -> int:
        """Forget everything from position `length` on, or all where the cache cannot go back that far or is stale.

        Returns how many tokens are held: what is missing up to `length` must be computed anew.
        """
        kept = self._cache.truncate(0 if self.stale else length)
        self._adapters = self._executor.adapters
        self._next = []
        del self._ids[kept:]
        return kept

    def keep(self, ids: Ids[int]) -> tuple[int, str | None]:
        """Forget all but the longest prefix of `ids`; returns how many tokens are held.

        With it comes what to tell where some of that prefix is lost and must be computed anew (see `rewind`).
        """
        wanted = self.common_prefix(ids)
        reason = "the adapters have changed" if self.stale else "the ring no longer holds what they saw"
        kept = self.rewind(wanted)
        return kept, f"{wanted - kept} tokens are computed anew: {reason}" if kept < wanted else None

    def take_over(self, other: Sequence) -> None:
        """Hold what `other` holds; that is closed and empty afterwards."""
        self.close()
        self._cache, other._cache = other._cache, self._cache
        self._ids, other._ids = other._ids, self._ids
        self._next, other._next = other._next, self._next
        self._adapters = other._adapters

    def fork(self) -> Sequence:
        """An independent sequence with the same content."""
        other = Sequence(self._executor, self._cache.fork(), self._ids)
        other._next = list(self._next)
        other._adapters = self._adapters
        return other

    def kv_stats(self) -> KvStats:
        """Tokens, bytes and layouts of the cache."""
        return self._cache.stats()

    def kv_map(self) -> tuple[KvMapGroup, ...]:
        """What stands where in the cache, by groups of layers."""
        return kv_map(self._cache, self._executor.config)

    def close(self) -> None:
        """Free the cache. The sequence is empty afterwards and can be used again."""
        self._cache.close()
        self._ids.clear()
        self._next.clear()

    def check_ids(self, ids: Ids[int]) -> None:
        """Raises ValueError for the first id that the vocabulary does not have."""
        size = self._executor.config.vocab_size
        unknown = next((token for token in ids if not 0 <= token < size), None)
        if unknown is not None:
            raise ValueError(f"token id {unknown} is not in the vocabulary, which has ids 0 to {size - 1}")

    def check_prompt(self, ids: Ids[int], sampling: Sampling) -> None:
        """Raises ContextFull where a prompt does not fit, ValueError for an unknown id in it or in a bias."""
        self.check_ids([*ids, *sampling.logit_bias])
        self.check_room(len(ids))

    def check_room(self, tokens: int) -> None:
        """Raises ContextFull where `tokens` would not fit."""
        if tokens > self.context:
            raise ContextFull(
                f"{tokens} tokens do not fit the context of {self.context}; "
                "shorten the conversation or choose a larger --context"
            )
