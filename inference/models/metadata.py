"""Typed reads of GGUF metadata, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from inference.errors import BadModelFile, UnsupportedModel

Number = TypeVar("Number", int, float)


class Metadata:
    """The metadata of one file, read with the architecture's prefix ("llama.block_count")."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source
        self.architecture = str(values.get("general.architecture", ""))

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """The whole number under `ARCHITECTURE.key`; raises BadModelFile where missing, no number, or too small."""
        value = self._find(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadModelFile(f"{self.source}: metadata {self.full(key)} is {value!r}, expected a whole number")
        if not minimum <= value < 2**31:
            raise BadModelFile(f"{self.source}: metadata {self.full(key)} is {value}, expected at least {minimum}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """The number under `ARCHITECTURE.key`; raises BadModelFile where it is missing or not a positive number."""
        value = self._find(key, default)
        if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise BadModelFile(f"{self.source}: metadata {self.full(key)} is {value!r}, expected a number of 0 or more")
        return float(value)

    def position_scale(self) -> float:
        """What linear rope scaling multiplies positions by (arXiv:2306.15595), 1 without scaling.

        Raises UnsupportedModel for another kind of scaling, BadModelFile for an impossible factor.
        """
        kind = self.text(self.full("rope.scaling.type"), "none")
        if kind == "none":
            return 1.0
        if kind != "linear":
            raise UnsupportedModel(
                f"{self.source}: metadata {self.full('rope.scaling.type')} is {kind!r}, which is not supported "
                "(only none and linear); use another model"
            )
        factor = self.real("rope.scaling.factor", 1.0)
        if factor == 0:
            raise BadModelFile(f"{self.source}: metadata {self.full('rope.scaling.factor')} is 0, expected above 0")
        return 1.0 / factor

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def text(self, key: str, default: str) -> str:
        return str(self.values.get(key, default))

    def _find(self, key: str, default: Any) -> Any:
        value = self.values.get(self.full(key), default)
        if value is None:
            raise BadModelFile(
                f"{self.source}: metadata {self.full(key)} is missing; fetch the file again or convert it anew"
            )
        return value
