"""What can follow in the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from app.completion import Completer, Completions, adapters, settings, words


@dataclass(frozen=True)
class Known:
    usage: str
    help: str


COMMANDS = {"model": Known("[NAME]", "choose"), "kv": Known("[LAYOUT]", "change"), "quit": Known("", "leave")}
SETTINGS = {"theme": ("Theme", ("glass", "light")), "top_k": ("Top-k", ()), "history": ("History", ("on", "off"))}
COMPLETER = Completer(
    COMMANDS | {"set": Known("", ""), "lora": Known("", "")},
    {
        "kv": words(lambda: {"paged": "pages", "tiered": "tiers", "tiered-int8": "less"}),
        "set": settings(lambda: SETTINGS),
        "lora": adapters(lambda: ("pirate", "sage")),
    },
)


def texts(found: Completions | None) -> list[str]:
    return [choice.text for choice in found.choices] if found else []


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("/mo", ["/model "]),
        ("/U", ["/quit"]),
        ("/model", ["/model "]),  # what may follow is still told
        ("/quit", []),  # it is there already
        ("/nothing", []),
        ("/kv ", ["paged", "tiered", "tiered-int8"]),
        ("/kv int", ["tiered-int8"]),
        ("/kv paged", []),
        ("/quit x", []),
        ("/nothing x", []),
        ("/set h", ["history ", "theme "]),
        ("/set theme ", ["theme glass", "theme light", "theme default"]),
        ("/set history o", ["history on", "history off"]),
        ("/lora drop s", ["drop sage"]),
        ("/lora pir", ["pirate"]),
        ("hello /kv ", []),
    ],
)
def test_commands_and_their_arguments(before: str, expected: list[str]) -> None:
    assert texts(COMPLETER.complete(before, True)) == expected


def test_commands_are_in_the_first_line_only() -> None:
    assert COMPLETER.complete("/mo", False) is None


def test_files_after_an_at_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for name in ("notes.txt", "my notes.txt", ".hidden", "notes/deep.py"):
        (tmp_path / name).touch()
    found = COMPLETER.complete("see @no", True)
    assert found is not None and found.start == 5
    assert texts(found) == ["notes/", "notes.txt "]
    assert texts(COMPLETER.complete("@notes/", False)) == ["notes/deep.py "]
    assert texts(COMPLETER.complete("@my", False)) == ['"my notes.txt" ']
    assert texts(COMPLETER.complete('@"my n', False)) == ['"my notes.txt" ']
    assert texts(COMPLETER.complete("@.h", False)) == [".hidden "]
    assert texts(COMPLETER.complete("me@no", False)) == []
    assert texts(COMPLETER.complete("@notes.txt and", False)) == []
    assert texts(COMPLETER.complete("@/no/such/folder/", False)) == []
    assert texts(COMPLETER.complete(f"@{tmp_path}/no", False)) == [f"{tmp_path}/notes/", f"{tmp_path}/notes.txt "]
