"""What can follow in the prompt: names of commands, their arguments, and files after @."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

_MOST = 100  # choices that are shown; who looks for more types on
_COMMAND = re.compile(r"/(?P<name>\w*)")
_ARGUMENT = re.compile(r"/(?P<name>\w+) +(?P<typed>.*)")
_MENTION = re.compile(r'(?:^|\s)@(?P<typed>"[^"]*|[^\s"]*)')


class CommandLike(Protocol):
    """What is told of a slash command: what may follow its name, and what it does."""

    @property
    def usage(self) -> str: ...
    @property
    def help(self) -> str: ...


@dataclass(frozen=True)
class Choice:
    """`text` takes the place of what was typed; `label` and `help` tell a person what it is."""

    text: str
    label: str
    help: str = ""


@dataclass(frozen=True)
class Completions:
    """The choices for the text from column `start` to the cursor; never none."""

    start: int
    choices: tuple[Choice, ...]


ArgumentSource = Callable[[str], Iterable[Choice]]
"""The choices for the argument of a command, given what was typed of it."""


class Completer:
    """Completes by two tables: the commands by name, and by the same names how their arguments are completed.

    Sources may look at the disk: `complete` is for another thread than the one that draws.
    """

    def __init__(self, commands: Mapping[str, CommandLike], arguments: Mapping[str, ArgumentSource]) -> None:
        self._commands = commands
        self._arguments = arguments

    def applies(self, before: str, in_first_line: bool) -> bool:
        """Whether there can be anything to complete; `before` is the line up to the cursor."""
        return (in_first_line and before.startswith("/")) or "@" in before

    def complete(self, before: str, in_first_line: bool) -> Completions | None:
        """What can follow; None where nothing can, or where it is there already."""
        start, found = self._found(before, in_first_line)
        choices = tuple(choice for choice, _ in zip(found, range(_MOST), strict=False))
        if not choices or (len(choices) == 1 and choices[0].text == before[start:]):
            return None
        return Completions(start, choices)

    def _found(self, before: str, in_first_line: bool) -> tuple[int, Iterable[Choice]]:
        if in_first_line and (match := _COMMAND.fullmatch(before)):
            return 0, self._named(match["name"])
        if in_first_line and (match := _ARGUMENT.fullmatch(before)) and match["name"] in self._commands:
            source = self._arguments.get(match["name"])
            return match.start("typed"), source(match["typed"]) if source else ()
        if match := next((each for each in _MENTION.finditer(before) if each.end() == len(before)), None):
            return match.start("typed"), mentions(match["typed"])
        return 0, ()

    def _named(self, typed: str) -> Iterable[Choice]:
        for name in matching(self._commands, typed):
            command = self._commands[name]
            label = f"/{name} {command.usage}".rstrip()
            yield Choice(f"/{name} " if command.usage else f"/{name}", label, command.help)


def matching(names: Iterable[str], typed: str) -> list[str]:
    """The names that begin with what was typed, then those that have it elsewhere; in any case of letters."""
    typed = typed.casefold()
    found = [name for name in names if typed in name.casefold()]
    return sorted(found, key=lambda name: not name.casefold().startswith(typed))


def words(table: Callable[[], Mapping[str, str]]) -> ArgumentSource:
    """Completes one word out of a table of words and what they mean, which is asked for each time."""

    def source(typed: str) -> Iterable[Choice]:
        known = table()
        return (Choice(name, name, known[name]) for name in matching(known, typed))

    return source


def paths(typed: str, wanted: Callable[[os.DirEntry[str]], bool] = lambda _: True) -> Iterable[Choice]:
    """Folders, and `wanted` files, whose names begin with what was typed; hidden ones where that begins with a dot."""
    folder, name = os.path.split(typed)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = [
                (not entry.is_dir(), entry.name)
                for entry in entries
                if entry.name.casefold().startswith(name.casefold())
                and (name.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
                and (entry.is_dir() or wanted(entry))
            ]
    except (OSError, ValueError):
        return
    for is_file, entry_name in sorted(found):
        label = entry_name if is_file else f"{entry_name}/"
        yield Choice(os.path.join(folder, label), label)


def files(*suffixes: str) -> ArgumentSource:
    """Completes the path of a file whose name ends with one of these."""
    return lambda typed: paths(typed, lambda entry: entry.name.endswith(suffixes))


def mentions(typed: str) -> Iterable[Choice]:
    """The files that can be named after @; a name with spaces is put in quotation marks."""
    for choice in paths(typed.removeprefix('"')):
        path, is_folder = choice.text, choice.text.endswith("/")
        quote = '"' if " " in path or typed.startswith('"') else ""
        end = "" if is_folder else f"{quote} "
        yield Choice(f"{quote}{path}{end}", choice.label)


def settings(known: Callable[[], Mapping[str, tuple[str, tuple[str, ...]]]]) -> ArgumentSource:
    """Completes `NAME VALUE`: `known` gives, by the names of settings, what each is and which values it has.

    Settings without a list of values complete their names only.
    """

    def source(typed: str) -> Iterable[Choice]:
        name, space, value = typed.partition(" ")
        table = known()
        if not space:
            return (Choice(f"{each} ", each, table[each][0]) for each in matching(table, name))
        values = (*table[name][1], "default") if name in table else ()
        return (Choice(f"{name} {each}", each) for each in matching(values, value.strip()))

    return source


def adapters(loaded: Callable[[], Iterable[str]]) -> ArgumentSource:
    """Completes the argument of `/lora`: adapters by the names of those loaded, `drop` of these, and paths."""

    def source(typed: str) -> Iterable[Choice]:
        names = tuple(loaded())
        verb, space, rest = typed.partition(" ")
        if verb == "drop" and space:
            yield from (Choice(f"drop {name}", name) for name in matching((*names, "all"), rest.strip()))
            return
        yield from (Choice(name, name, "loaded") for name in matching(names, typed))
        if names and "drop".startswith(typed):
            yield Choice("drop ", "drop", "drop one that is loaded")
        yield from files(".gguf", ".safetensors")(typed)

    return source
