"""Where each setting comes from: the file, the environment, or a flag of the command line, the later the stronger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.sanitize import visible
from app.settings.file import read_file, save_values
from app.settings.model import Settings
from app.settings.values import all_settings, parse

_PREFIX = "GLASSCHAT_"

Multiplexer = Literal["", "tmux", "screen"]
"""What may stand between the program and the terminal."""


@dataclass(frozen=True)
class Sources:
    """The values given, by the names of settings, and what was wrong with others (`notices`, a line each)."""

    path: Path
    file: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variable that each value in `environment` came from."""
    notices: tuple[str, ...] = ()
    no_color: bool = False
    """Whether the environment asks for no colours at all, https://no-color.org."""
    editor: str = "vi"
    """The command of the person's own editor."""
    multiplexer: Multiplexer = ""

    @property
    def given(self) -> dict[str, Any]:
        """What is set anywhere, by the names of settings, with the strongest value of each."""
        return {**self.file, **self.environment, **self.flags}

    @property
    def settings(self) -> Settings:
        """All settings."""
        return Settings(**self.given)

    def value(self, name: str) -> Any:
        """The value of a setting or of an entry (FIELD.ENTRY); None where an entry is not set."""
        field, _, entry = name.partition(".")
        value = self.given.get(field, all_settings()[field].default)
        return value.get(entry) if entry else value

    def origin(self, name: str) -> str:
        """Where the value comes from, in words: "a flag", a variable's name, "the file" or "default"."""
        field, _, entry = name.partition(".")
        if field in self.flags:
            return "a flag"
        if field in self.environment:
            return self.variables[field]
        in_file = entry in self.file.get(field, ()) if entry else field in self.file
        return "the file" if in_file else "default"

    def changed(self, name: str, value: Any) -> tuple[Sources, str]:
        """Set the value in the file, or with None take it out, and use it from now on.

        Flags and the environment no longer stand in its way, until the next start. Returns the new sources and a
        notice: "" or why the file could not be saved, in which case the value holds for this run only.
        """
        field, _, entry = name.partition(".")
        in_file = dict(self.file)
        if entry:
            table = {**in_file.get(field, {}), entry: value}
            in_file[field] = {key: each for key, each in table.items() if each is not None}
        else:
            in_file[field] = value
        after = replace(
            self,
            file={key: each for key, each in in_file.items() if each is not None},
            environment={key: each for key, each in self.environment.items() if key != field},
            flags={key: each for key, each in self.flags.items() if key != field},
        )
        return after, save_values({name: value}, self.path)


def read_sources(path: Path, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Sources:
    """The settings of this run; `flags` may hold other options too, which are left out."""
    file, notices = read_file(path)
    environment, variables, wrong = _read_environment(environ)
    known = {name: value for name, value in flags.items() if name in all_settings()}
    editor = environ.get("VISUAL") or environ.get("EDITOR") or "vi"
    multiplexer: Multiplexer = "tmux" if environ.get("TMUX") else "screen" if environ.get("STY") else ""
    no_color = bool(environ.get("NO_COLOR"))
    return Sources(path, file, environment, known, variables, notices + wrong, no_color, editor, multiplexer)


def _read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    notices = []
    for name, setting in all_settings().items():
        if setting.spec.implied_by is not None and environ.get(setting.spec.implied_by[0]):
            variables[name], values[name] = setting.spec.implied_by
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        own = all_settings().get(name)
        # One variable cannot hold a table.
        if own is None or own.table:
            notices.append(f"{variable} is not the name of a setting; it is ignored.")
            continue
        try:
            value = parse(own, text)
        except ValueError as error:
            notices.append(f"{variable} is {visible(text)!r}, {error}; it is ignored.")
            continue
        if value is not None:
            values[name], variables[name] = value, variable
    return values, variables, tuple(notices)
