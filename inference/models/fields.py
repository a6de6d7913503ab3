"""Typed reads of a model's description (config.json or GGUF metadata), with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inference.errors import BadModelFile, UnsupportedModel


class Fields:
    """The values of one description. `source` is what messages put before a key ("model.gguf: metadata"); `prefix`
    precedes every key ("llama." in GGUF). `defaults` stand in for keys that are left out, not for those that are null.

    A value that is null counts as missing. All reads raise BadModelFile where the value is missing and has no default,
    or is of another kind.
    """

    def __init__(
        self, values: Mapping[str, Any], source: str, prefix: str = "", defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._values = {prefix + key: value for key, value in (defaults or {}).items()} | dict(values)
        self.source = source
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self._values.get(self._prefix + key) is not None

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """A whole number from `minimum` to `maximum`."""
        value = self._find(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.wrong(key, value, f"a whole number from {minimum} to {maximum}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number of 0 or more."""
        value = self._find(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise self.wrong(key, value, "a number of 0 or more")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.real(key, default)
        if value == 0:
            raise self.wrong(key, value, "a number above 0")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._find(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._find(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def items(self, key: str) -> list[Any]:
        """A list, whatever it holds."""
        value = self._find(key, None)
        if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str):
            raise self.wrong(key, value, "a list")
        return list(value)

    def group(self, key: str, defaults: Mapping[str, Any] | None = None) -> Fields:
        """The values below a key; none but the defaults where it is missing."""
        value = self._values.get(self._prefix + key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        prefix = f"{self._prefix}{key}."
        return Fields({prefix + name: each for name, each in (value or {}).items()}, self.source, prefix, defaults)

    def wrong(self, key: str, value: object, expected: str) -> BadModelFile:
        """The error for a value that cannot be right."""
        return BadModelFile(f"{self.source} {self._prefix}{key} is {value!r}, expected {expected}")

    def unsupported(self, key: str, value: object, known: str) -> UnsupportedModel:
        """The error for a value that is not known here."""
        return UnsupportedModel(
            f"{self.source} {self._prefix}{key} is {value!r}, which is not supported (only {known}); use another model"
        )

    def _find(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise BadModelFile(f"{self.source} {self._prefix}{key} is missing; fetch the file again or convert it anew")
        return value
