"""What Glasschat remembers between runs: one frozen record in a TOML file of the user's configuration folder."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path

import platformdirs

_APP = "glasschat"


@dataclass(frozen=True)
class Settings:
    """`model` is the last model used, a path or a catalogue name, "" if none; `theme` is a Textual theme's name."""

    model: str = ""
    theme: str = "glass"


def settings_path() -> Path:
    """The settings file; it need not exist."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "settings.toml"


def log_path() -> Path:
    """The log file: tracebacks, and what native libraries print while the screen is up."""
    return platformdirs.user_log_path(_APP, appauthor=False) / "glasschat.log"


def load_settings(path: Path) -> tuple[Settings, str]:
    """The settings in `path` and a notice: "" if all is well, else what was wrong with the file.

    A missing file gives the defaults; a damaged one too, with a notice. Unknown keys are ignored.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings(), ""
    except (OSError, ValueError) as error:
        return Settings(), f"The settings in {path} could not be read ({error}); the defaults are used."
    known = {field.name: table[field.name] for field in fields(Settings) if field.name in table}
    wrong = [name for name, value in known.items() if not isinstance(value, str)]
    notice = f"In {path}, {', '.join(wrong)} should be text in quotes; the default is used." if wrong else ""
    return Settings(**{name: value for name, value in known.items() if name not in wrong}), notice


def save_settings(settings: Settings, path: Path) -> str:
    """Write `settings` to `path` in one step; returns "" or a notice saying why they could not be saved."""
    # A JSON string without ASCII escapes is a TOML basic string, but for DEL.
    lines = [
        f"{field.name} = {json.dumps(getattr(settings, field.name), ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
        for field in fields(Settings)
    ]
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return f"The settings could not be saved to {path}: {error}"
    return ""


def with_model(settings: Settings, name: str) -> Settings:
    """The settings with that model as the last one used; a path is made absolute."""
    path = Path(name).expanduser()
    return replace(settings, model=str(path.absolute()) if path.exists() else name)
