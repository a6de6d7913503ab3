"""What a model takes of a device's memory, part by part. Each device tells its own: inference/cpu, inference/gpu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["weights", "KV cache", "scratch"]
PARTS: tuple[Part, ...] = ("weights", "KV cache", "scratch")


@dataclass(frozen=True)
class Need:
    """Bytes for one purpose; `what` is a format, a layout with its layers, or a kind of scratch."""

    part: Part
    what: str
    bytes: int


@dataclass(frozen=True)
class Needs:
    """All needs of one kind, and the size of each buffer by what it holds (none on the CPU, which has no limits)."""

    rows: tuple[Need, ...]
    buffers: Mapping[str, int] = field(default_factory=dict)
