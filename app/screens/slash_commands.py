"""The slash commands: one table with what each takes, what it does for the help, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.slash import SlashCommand

if TYPE_CHECKING:
    from app.screens.chat import ChatScreen


@dataclass(frozen=True)
class Command:
    """`usage` is what may follow the name, `run` is given the chat and what does follow."""

    usage: str
    help: str
    run: Callable[[ChatScreen, str], None]


def _model(chat: ChatScreen, argument: str) -> None:
    if argument:
        chat.model.load(argument)
    else:
        _action("app.models")(chat, "")


def _lora(chat: ChatScreen, argument: str) -> None:
    if argument:
        chat.loras.run(argument)
    else:
        chat.panels.enter_lora()


def _action(name: str) -> Callable[[ChatScreen, str], None]:
    """An action of the application or of the chat, run after the prompt is done with the key."""

    def run(chat: ChatScreen, argument: str) -> None:
        chat.app.call_later(chat.run_action, name)

    return run


COMMANDS: Mapping[str, Command] = {
    "model": Command("[NAME|PATH]", "choose a model, or load that one", _model),
    "kv": Command(
        "[LAYOUT]",
        "change the layout of the KV cache, or list the layouts",
        lambda chat, argument: chat.model.use_layout(argument),
    ),
    "lora": Command(
        "[PATH|org/repo][=STRENGTH]",
        "load a LoRA adapter or change its strength; drop NAME|all; alone: the panel",
        _lora,
    ),
    "system": Command(
        "[TEXT]",
        "set the system prompt for what follows; without text, show it",
        lambda chat, argument: chat.conversation.set_system(argument),
    ),
    "drop": Command(
        "[N]",
        "leave out the oldest question and its reply, or N of them, to make room in the context",
        lambda chat, argument: chat.conversation.drop(argument),
    ),
    "clear": Command("", "start over with an empty conversation", lambda chat, _: chat.action_clear()),
    "copy": Command("", "copy the last reply as it was written", lambda chat, _: chat.action_copy_reply()),
    "help": Command("", "keys and commands", _action("app.help")),
    "quit": Command("", "leave", _action("app.quit")),
}


def run_command(chat: ChatScreen, command: SlashCommand) -> bool:
    """Run it; False, and a hint, where there is none of that name."""
    if (known := COMMANDS.get(command.name)) is None:
        chat.hint(f"There is no command /{command.name}. /help lists them.")
        return False
    known.run(chat, command.argument)
    return True
