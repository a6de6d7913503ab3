"""Commands typed into the prompt: a name after a slash, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass

COMMANDS = {
    "model": "[NAME|PATH]  choose a model, or load that one",
    "kv": "[LAYOUT]  change the layout of the KV cache, or list the layouts",
    "lora": "[PATH|org/repo][=STRENGTH]  load a LoRA adapter or change its strength; drop NAME|all; alone: the panel",
    "system": "[TEXT]  set the system prompt for what follows; without text, show it",
    "drop": "[N]  leave out the oldest question and its reply, or N of them, to make room in the context",
    "clear": "start over with an empty conversation",
    "copy": "copy the last reply as it was written",
    "help": "keys and commands",
    "quit": "leave",
}


@dataclass(frozen=True)
class SlashCommand:
    """`name` is one of COMMANDS, or what was typed instead."""

    name: str
    argument: str


def parse_slash(text: str) -> SlashCommand | None:
    """The command in `text`, or None where it is a message: it does not begin with a slash and a letter."""
    if not text.startswith("/") or not text[1:2].isalpha():
        return None
    name, _, argument = text[1:].partition(" ")
    return SlashCommand(name.strip(), argument.strip()) if "/" not in name else None
