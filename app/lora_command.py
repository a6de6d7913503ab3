"""What is typed after `/lora`: adapters to load, to change in strength, or to drop."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.options import lora

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter

Strengths = tuple[tuple[str, float | None], ...]
"""Adapters, by path or name, each with its new strength; None drops it."""

_QUOTED = re.compile(r"""(?P<quote>["'])(?P<name>.+?)(?P=quote)\s*=?\s*(?P<strength>.*)""", re.DOTALL)


class UnclearLora(Exception):
    """What was typed cannot be done, and why."""


def parse_lora(argument: str, loaded: Sequence[AppliedAdapter]) -> Strengths:
    """The changes that `argument` (not empty) asks for, of the adapters that are loaded or of others.

    `NAME`, `NAME=0.5` and `NAME 0.5`; a path with spaces may stand in quotes. An adapter that is loaded also goes by
    its number, counted from 1. `drop NAME` and `drop all` drop. Raises UnclearLora.
    """
    verb, _, rest = argument.partition(" ")
    if verb == "drop":
        return _dropped(rest.strip().strip("'\""), loaded)
    name, strength = _name_and_strength(argument)
    return ((_find(name, loaded) or name, strength),)


def _dropped(name: str, loaded: Sequence[AppliedAdapter]) -> Strengths:
    if not loaded:
        raise UnclearLora("No adapter is loaded.")
    if name == "all":
        return tuple((str(each.adapter.path), None) for each in loaded)
    path = _find(name, loaded)
    if path is None:
        names = ", ".join(f"{number} {each.adapter.name}" for number, each in enumerate(loaded, 1))
        raise UnclearLora(f"/lora drop takes an adapter that is loaded, or all: {names}.")
    return ((path, None),)


def _name_and_strength(argument: str) -> tuple[str, float]:
    """The strength is 1 where none is given."""
    if match := _QUOTED.fullmatch(argument):
        name, text = match["name"], f"{match['name']}={match['strength'] or 1}"
    else:
        # A path may have "=" and spaces in it: only a number at the end is a strength.
        name, _, tail = argument.rpartition(" ")
        text = f"{name.rstrip(' =')}={tail}" if name and _is_number(tail) else argument
    try:
        found, strength = lora(text)
    except argparse.ArgumentTypeError as error:
        raise UnclearLora(str(error)) from error
    if match and found != name:
        raise UnclearLora(f"After the name comes a strength such as 0.5, not {match['strength']}.")
    return found.strip(), strength


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _find(name: str, loaded: Sequence[AppliedAdapter]) -> str | None:
    """The path of the loaded adapter of this number, name or path; None where it is none of them."""
    paths = [str(each.adapter.path) for each in loaded]
    if name.isdecimal() and 1 <= int(name) <= len(paths):
        return paths[int(name) - 1]
    found = [path for path, each in zip(paths, loaded, strict=True) if name in (each.adapter.name, path)]
    if len(found) > 1:
        raise UnclearLora(f"Several adapters are called {name}; say which by its number in the list (F6).")
    return found[0] if found else None
