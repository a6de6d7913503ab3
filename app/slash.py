"""Slash commands as they are typed into the prompt: a name after a slash, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlashCommand:
    """What was typed: the name of a command, or what stands in its place, and the text after it."""

    name: str
    argument: str


def parse_slash(text: str) -> SlashCommand | None:
    """The command in `text`, or None where it is a message: it does not begin with a slash and a letter."""
    if not text.startswith("/") or not text[1:2].isalpha():
        return None
    name, _, argument = text[1:].partition(" ")
    return SlashCommand(name.strip(), argument.strip()) if "/" not in name else None
