"""What is typed after `/set`: a setting to look at, to change or to put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from app.settings.sources import Sources
from app.settings.values import Setting, parse, text_of

Change = Callable[[str, Any], str]
"""Sets a value by name, None for the default; returns a notice or "". Raises ValueError, saying what is wrong."""


def run_set(argument: str, known: Mapping[str, Setting], sources: Sources, change: Change) -> str:
    """Do what `/set ARGUMENT` asks for and return what to tell the person.

    `NAME` shows a setting, `NAME VALUE` changes it, `NAME default` puts it back; nothing lists what is not default.
    """
    name, _, text = argument.strip().partition(" ")
    if not name:
        return _list(known, sources)
    if (setting := known.get(name)) is None:
        near = get_close_matches(name, known, 3) or ["temperature", "kv", "theme"]
        return f"There is no setting {name}. Some there are: {', '.join(near)}; the settings screen has all."
    if not text.strip():
        return (
            f"{name} is {shown(setting, sources)}, from {origin_words(name, sources)}. {setting.spec.help}. "
            f"Expected {setting.expected}; a change works {setting.spec.effect}."
        )
    try:
        notice = change(name, None if text.strip() == "default" else parse(setting, text.strip()))
    except ValueError as error:
        return f"{name} stays {shown(setting, sources)}: {error}; found {text.strip()}."
    return notice or f"{name} is set; it works {setting.spec.effect}."


def shown(setting: Setting, sources: Sources) -> str:
    """The value in use, as it would be typed; "not set" where there is none."""
    value = sources.value(setting.name)
    return text_of(setting.default if value is None else value) or "not set"


def origin_words(name: str, sources: Sources) -> str:
    """Where the value comes from."""
    origin = sources.origin(name)
    return "the defaults" if origin == "default" else origin


def _list(known: Mapping[str, Setting], sources: Sources) -> str:
    lines = [
        f"{name} {shown(setting, sources)} ({origin_words(name, sources)})"
        for name, setting in known.items()
        if sources.origin(name) != "default"
    ]
    return "\n".join(("Set: ", *lines)) if lines else "All settings have their defaults."
