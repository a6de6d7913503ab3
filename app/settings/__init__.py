"""What can be set, and what is remembered between runs: one typed record, read from three places, kept in one file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from app.settings.file import history_path, log_path, read_file, save_values, settings_path
from app.settings.model import Settings, with_model
from app.settings.sources import Multiplexer, Sources, read_sources

__all__ = [
    "Multiplexer",
    "Settings",
    "Sources",
    "history_path",
    "load_settings",
    "log_path",
    "read_sources",
    "save_settings",
    "settings_path",
    "with_model",
]


def load_settings(path: Path) -> tuple[Settings, str]:
    """The settings in `path` and a notice: "" if all is well, else what was wrong with the file."""
    values, notices = read_file(path)
    return Settings(**values), "\n".join(notices)


def save_settings(settings: Settings, path: Path) -> str:
    """Save what is not yet so in the file; returns "" or a notice saying why it could not be saved."""
    values, _ = read_file(path)
    saved = Settings(**values)
    names = [field.name for field in fields(Settings)]
    changes = {name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(saved, name)}
    return save_values(changes, path) if changes else ""
