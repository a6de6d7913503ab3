"""What may follow /twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.twin_command import DIFFERENCES, TwinChanges, UnclearTwin, differences, parse_twin
from inference.lora.adapter_set import AppliedAdapter
from tests.app.scripted_engine import adapter

LOADED = (AppliedAdapter(adapter("/lora/pirate"), 1.0),)


def test_each_difference_becomes_what_it_is() -> None:
    words = "kv=tiered-int4 temperature=1.2 seed=3 top_k=0 dtype=f16 kernels=prefer:gemv device=cpu model=org/x"
    assert parse_twin(words, ()) == TwinChanges(
        words,
        model="org/x",
        kv="tiered-int4",
        engine={"dtype": "f16", "kernels": ["prefer:gemv"], "device": "cpu"},
        sampling={"temperature": 1.2, "seed": 3, "top_k": 0},
    )


def test_adapters_go_by_name_or_path() -> None:
    assert parse_twin("lora=pirate=0.25", LOADED).loras == (("/lora/pirate", 0.25),)
    assert parse_twin("lora=1=0", LOADED).loras == (("/lora/pirate", 0.0),)
    assert parse_twin("'lora=/my files/sage=0.5' lora=pirate=0.5", LOADED).loras == (
        ("/my files/sage", 0.5),
        ("/lora/pirate", 0.5),
    )


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_is_known(name: str, tmp_path: Path) -> None:
    values = {
        "kv": "paged",
        "dtype": "f32",
        "weights": "q8",
        "kernels": "force:gemv",
        "device": "cpu",
        "kv_device": "cpu",
    }
    assert parse_twin(f"{name}={values.get(name, '1')}", ()) != TwinChanges(f"{name}={values.get(name, '1')}")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("kv=tiered-", ["kv=tiered-int8 ", "kv=tiered-int4 "]),
        ("seed=3 te", ["seed=3 temperature="]),
        ("of", ["off"]),
        ("kv=paged of", []),
        ("seed=", []),
    ],
)
def test_differences_are_completed(typed: str, found: list[str]) -> None:
    assert [choice.text for choice in differences(typed)] == found


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("kv", "NAME=VALUE"),
        ("color=red", "not color=red"),
        ("kv=cubic", "invalid choice: 'cubic'"),
        ("temperature=-1", "-1"),
        ("temperature=warm", "temperature: 'warm' is not a number from 0 on"),
        ("lora=x=inf", "expected a number such as 0.5"),
        ("kernels=gemv", "prefer:NAME"),
        ("kv='paged", "No closing quotation"),
        ("max_tokens=3", "not max_tokens=3"),
    ],
)
def test_what_is_unclear_is_told_on_one_line(typed: str, says: str) -> None:
    with pytest.raises(UnclearTwin, match=r"[.\w]") as told:
        parse_twin(typed, ())
    assert says in str(told.value) and "\n" not in str(told.value)
