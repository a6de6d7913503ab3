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


def _set(chat: ChatScreen, argument: str) -> None:
    chat.post_message(chat.Set(argument))


def _after(chat: ChatScreen, what: Callable[[], None]) -> None:
    """Do what changes the prompt once the command is gone from it."""
    chat.call_later(what)


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
    "place": Command(
        "[N|auto]",
        "run the first N layers on WebGPU, the rest on the CPU; auto is as many as fit; alone: what runs where",
        lambda chat, argument: chat.model.place(argument),
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
    "new": Command("", "begin another conversation", lambda chat, _: chat.history.new()),
    "edit": Command(
        "",
        "change the chosen question, or the last one; it becomes a branch of its own",
        lambda chat, _: _after(chat, chat.messages.edit),
    ),
    "retry": Command(
        "", "let the model answer the chosen question, or the last one, again", lambda chat, _: chat.messages.retry()
    ),
    "alternatives": Command(
        "[N]",
        "let the model answer the chosen question, or the last one, with N replies at once (3); keep one of them",
        lambda chat, argument: chat.alternatives.run(argument),
    ),
    "twin": Command(
        "[NAME=VALUE ...|off]",
        "answer each message twice, side by side: the second time with another KV layout, sampling, adapter, model …",
        lambda chat, argument: chat.twin.run(argument),
    ),
    "fork": Command(
        "",
        "go on in a conversation of its own, which begins like this one up to the chosen message",
        lambda chat, _: chat.history.fork(),
    ),
    "rename": Command(
        "TITLE",
        "give the conversation that title",
        lambda chat, title: chat.history.rename(chat.history.current, title),
    ),
    "export": Command(
        "[PATH]",
        "write the conversation to a .md file, or all its branches to a .json file",
        lambda chat, argument: chat.history.export(argument),
    ),
    "import": Command(
        "PATH", "open a conversation from a .json file", lambda chat, argument: chat.history.import_file(argument)
    ),
    "set": Command("NAME [VALUE]", "show a setting, or change it", _set),
    "continue": Command(
        "",
        "let the model go on with the chosen reply, or the last one, where it was cut off",
        lambda chat, _: chat.messages.go_on(),
    ),
    "copy": Command(
        "[code [N]|raw|message]",
        "copy the answer of the chosen reply, or the last one; its last or N-th code; all of it; the chosen message",
        lambda chat, argument: chat.copying.run(argument),
    ),
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
