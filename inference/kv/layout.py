"""The protocol of a KV cache: what the engine may ask of any layout on any device."""

from __future__ import annotations

from typing import Protocol, Self

from inference.events import KvStats
from inference.models.config import ModelConfig

GROWTH_STEP = 1024
"""Tokens by which a contiguous cache grows; also the smallest capacity."""


class KvCache(Protocol):
    """Keys and values of one sequence. `length` tokens are held; token i stands at position i.

    A layout decides where a token's keys and values lie; what each layer's attention reads is handed to
    the executor of the same device through methods of the concrete class.
    """

    length: int
    context: int

    def ensure(self, tokens: int) -> None:
        """Make room for `tokens` in all. Raises ContextFull above `context`, DoesNotFit above the memory."""

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""

    def fork(self) -> Self:
        """An independent cache with the same content."""

    def stats(self) -> KvStats:
        """Tokens, capacity and bytes."""

    def close(self) -> None:
        """Free the memory."""


def kv_bytes_per_token(config: ModelConfig, itemsize: int) -> int:
    """Bytes of K and V of one token over all layers."""
    return 2 * config.num_layers * config.kv_size * itemsize


def grown_capacity(tokens: int, context: int) -> int:
    """The capacity for `tokens`: whole steps, never more than the context."""
    return min(context, -(-tokens // GROWTH_STEP) * GROWTH_STEP)
