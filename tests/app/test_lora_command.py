"""What may follow `/lora`."""

from __future__ import annotations

import pytest

from app.lora_command import UnclearLora, parse_lora
from inference.lora.adapter_set import AppliedAdapter
from tests.app.scripted_engine import adapter

LOADED = [
    AppliedAdapter(adapter(path)) for path in ("/lora/pirate", "/lora/two words", "/old/pirate.v2", "/new/pirate.v2")
]


@pytest.mark.parametrize(
    ("argument", "name", "strength"),
    [
        ("~/adapters/x", "~/adapters/x", 1),
        ("some/x=0.5", "some/x", 0.5),
        ("some/x -0.5", "some/x", -0.5),
        ("a folder/x = .25", "a folder/x", 0.25),
        ("a folder/x", "a folder/x", 1),
        ("a=b/x", "a=b/x", 1),
        ("'a folder/x'", "a folder/x", 1),
        ('"a=1"', "a=1", 1),
        ('"a folder/7" 0.3', "a folder/7", 0.3),
        ('"a folder/x"=0.3', "a folder/x", 0.3),
        ("org/repo@v1=2", "org/repo@v1", 2),
        ("pirate 0.3", "/lora/pirate", 0.3),
        ("pirate=0", "/lora/pirate", 0),
        ("two words 0.3", "/lora/two words", 0.3),
        ("1 0.3", "/lora/pirate", 0.3),
        ("4", "/new/pirate.v2", 1),
        ("/old/pirate.v2=0.1", "/old/pirate.v2", 0.1),
        ("5", "5", 1),
        ("drop 2", "/lora/two words", None),
        ("drop pirate", "/lora/pirate", None),
        ("drop 'two words'", "/lora/two words", None),
        ("./drop", "./drop", 1),
    ],
)
def test_an_adapter_and_its_strength(argument: str, name: str, strength: float | None) -> None:
    assert parse_lora(argument, LOADED) == ((name, strength),)


def test_all_can_be_dropped_together() -> None:
    assert parse_lora("drop all", LOADED) == tuple((str(each.adapter.path), None) for each in LOADED)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("pirate nan", "expected a number such as 0.5"),
        ("pirate=inf", "expected a number such as 0.5"),
        ("'some/x' half", "a strength such as 0.5, not half"),
        ("pirate.v2 0.5", "Several adapters are called pirate.v2; say which by its number"),
        ("drop", "takes an adapter that is loaded, or all: 1 pirate, 2 two words, 3 pirate.v2"),
        ("drop some/x", "takes an adapter that is loaded"),
    ],
)
def test_what_is_unclear_is_refused(argument: str, message: str) -> None:
    with pytest.raises(UnclearLora, match=message):
        parse_lora(argument, LOADED)
    with pytest.raises(UnclearLora, match="No adapter is loaded"):
        parse_lora("drop all", ())
