"""Values of settings: their types, checked or read from text, and written as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from math import isfinite
from typing import Any, get_args, get_origin, get_type_hints

from app.settings.model import Settings, Spec

_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")


@dataclass(frozen=True)
class Setting:
    """A field of Settings, or one entry of a field that is a table; `name` is FIELD or FIELD.ENTRY."""

    name: str
    spec: Spec
    base: type
    """bool, int, float or str; tuple for a list of text."""
    optional: bool
    table: bool
    """Whether it is a whole table: entries by name, each of type `base`."""
    default: Any

    @property
    def expected(self) -> str:
        """Which values it takes, in words."""
        return "a table" if self.table else _expected(self.base, self.spec)

    @property
    def values(self) -> tuple[str, ...]:
        """All values that it takes, as they would be typed; empty where they cannot be listed."""
        return ("on", "off") if self.base is bool else self.spec.choices

    def entry(self, name: str) -> Setting:
        """The setting for one entry of this table."""
        return replace(self, name=f"{self.name}.{name}", optional=True, table=False, default=None)


@cache
def all_settings() -> Mapping[str, Setting]:
    """The fields of Settings by name, in order."""
    hints = get_type_hints(Settings)
    return {field.name: _setting(field, hints[field.name]) for field in fields(Settings)}


def _setting(field: Any, hint: Any) -> Setting:
    default = field.default_factory() if field.default is MISSING else field.default
    parts, table = get_args(hint), get_origin(hint) is Mapping
    if get_origin(hint) is tuple:
        base: type = tuple
    else:
        base = parts[1] if table else parts[0] if parts else hint
    return Setting(field.name, field.metadata["spec"], base, type(None) in parts, table, default)


def _expected(base: type, spec: Spec) -> str:
    if spec.choices:
        return f"one of {', '.join(spec.choices)}"
    if base is bool:
        return "true or false"
    if base not in (int, float):
        return "text" if base is str else "a list of names"
    number = "a whole number" if base is int else "a number"
    if spec.above is not None:
        return f"{number} above {spec.above:g}" + (f", up to {spec.most:g}" if spec.most is not None else "")
    if spec.least is None:
        return number
    return f"{number} from {spec.least:g} " + (f"to {spec.most:g}" if spec.most is not None else "on")


def check(setting: Setting, value: Any) -> Any:
    """The value in the setting's own type; the entries of a table are not looked at.

    Raises ValueError, saying what was expected.
    """
    if setting.table:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected {setting.expected}")
        return value
    if value is None and setting.optional:
        return None
    spec, base = setting.spec, setting.base
    if base is tuple and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    # In Python, True is an int.
    if base is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1 << 1000 else float("inf")
    good = isinstance(value, base) and (base is bool or not isinstance(value, bool))
    if good and spec.choices:
        good = value in spec.choices
    elif good and base in (int, float):
        good = (
            (base is int or isfinite(value))
            and (spec.least is None or value >= spec.least)
            and (spec.above is None or value > spec.above)
            and (spec.most is None or value <= spec.most)
        )
    if not good:
        raise ValueError(f"expected {setting.expected}")
    return value


def parse(setting: Setting, text: str) -> Any:
    """The value that was typed, or stands in an environment variable. Raises ValueError, saying what was expected."""
    if setting.base is str:
        return check(setting, text)
    word = text.strip()
    if setting.optional and not word:
        return None
    if setting.base is tuple:
        return check(setting, [part.strip() for part in word.split(",") if part.strip()])
    if setting.base is bool:
        return check(setting, word.lower() in _ON if word.lower() in (*_ON, *_OFF) else None)
    try:
        number = setting.base(word)
    except ValueError:
        raise ValueError(f"expected {setting.expected}") from None
    return check(setting, number)


def text_of(value: Any) -> str:
    """The value as it would be typed."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value)
