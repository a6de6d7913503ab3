"""The settings file: TOML in the user's configuration folder. What is not ours in it stays as it is."""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from app.sanitize import visible
from app.settings.values import Setting, all_settings, check

_APP = "glasschat"


def settings_path() -> Path:
    """The settings file; it need not exist."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "settings.toml"


def log_path() -> Path:
    """The log file: tracebacks, and what native libraries print while the screen is up."""
    return platformdirs.user_log_path(_APP, appauthor=False) / "glasschat.log"


def history_path() -> Path:
    """The file of the conversations; it need not exist."""
    return platformdirs.user_data_path(_APP, appauthor=False) / "history.db"


def read_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The good values in the file, by the names of settings, and a notice of one line for each bad one."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        return {}, (f"The settings in {path} could not be read ({error}); the defaults are used.",)
    values: dict[str, Any] = {}
    notices: list[str] = []

    def good(setting: Setting, found: Any) -> bool:
        try:
            check(setting, found)
        except ValueError as error:
            used = "it is ignored" if setting.default in (None, "") else f"the default, {setting.default}, is used"
            notices.append(f"In {path}, {setting.name} is {_short(found)}, {error}; {used}.")
            return False
        return True

    for name, found in table.items():
        if (setting := all_settings().get(name)) is None:
            notices.append(f"In {path}, {name} is not a setting; it is left as it is.")
        elif good(setting, found):
            values[name] = check(setting, found)
            if setting.table:
                values[name] = {key: each for key, each in _flat(found) if good(setting.entry(key), each)}
    return values, tuple(notices)


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The entries by dotted names: TOML takes chat.kv = "f4" for a table within the table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def _short(value: Any) -> str:
    text = visible(repr(value))
    return text if len(text) <= 60 else text[:59] + "…"


def save_values(changes: Mapping[str, Any], path: Path) -> str:
    """Set these settings in the file, and take out those that are None; the rest of the file stays as it is.

    FIELD.ENTRY names an entry of a table. The file is replaced in one step. Returns "" or a notice saying why nothing
    was saved.
    """
    # Read late: it takes 40 ms, and most runs save nothing.
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        file = path.resolve()  # dotfiles are often links to elsewhere
        document = tomlkit.parse(file.read_text(encoding="utf-8")) if file.exists() else tomlkit.document()
        for name, value in changes.items():
            _change(document, name, value)
        _replace(file, tomlkit.dumps(document))
    except (OSError, ValueError, TOMLKitError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"The settings could not be saved to {path}, which stays as it was: {why}"
    return ""


def _change(document: Any, name: str, value: Any) -> None:
    import tomlkit

    field, _, entry = name.partition(".")
    if not entry:
        _put(document, field, list(value) if isinstance(value, tuple) else value)
        return
    if not isinstance(document.get(field), Mapping):
        document[field] = tomlkit.table()
    table, key = document[field], entry
    # Where the file spells the entry out as tables within tables, it stays so.
    while "." in key and isinstance(inner := table.get(key.partition(".")[0]), Mapping):
        table, key = inner, key.partition(".")[2]
    _put(table, key, value)


def _put(table: Any, key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _replace(path: Path, text: str) -> None:
    """Write the file so that there is always a whole one, the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
