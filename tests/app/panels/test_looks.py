"""What the panels look like, in both sizes and both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from app.panels.names import PANELS
from app.screens.panel_menu import PanelMenu
from tests.app.conftest import MadeApp
from tests.app.panels.conftest import shown
from tests.app.pictures import LARGE, SMALL, Pictures
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, say, until

PIECES = ("The", " sea", " rises", " and", " falls", " twice", " a", " day", ",", " because", " of", " the", " moon",
          " and", ",", " less", " so", ",", " the", " sun", ".", "\n", "\n", "Spring", " tides", " are", " high", "; ",
          "n", "e", "ap", " tides", " are", " low", ".")  # fmt: skip
PROMPT_END = "<think> 東京 \x1b[2J"
TOGETHER = [("dtypes", "memory"), ("kernels", "timing"), ("prompt", "tokens"), ("kv", "lora")]


def enter(pilot: Pilot[None], name: str) -> None:
    chat(pilot).action_toggle_panel(name)
    chat(pilot).panels._enter(name)


async def look_closer(pilot: Pilot[None], name: str) -> None:
    """Times in the panel of kernels, and alternatives in that of tokens."""
    if name == "kernels":
        await pilot.press("down", "enter", "t")
        await until(pilot, lambda: "for all operations" in shown(pilot, "#kernel-times"))
    if name == "tokens":
        await until(pilot, lambda: "35 of 35" in shown(pilot, "#token-facts"))
        await pilot.press("left", "left", "left", "enter")


async def test_panels(
    make_app: Callable[..., MadeApp], pictures: Pictures, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.panels.reply_trace.time.thread_time", lambda: 0.0)
    app = make_app(Script(pieces=PIECES, prompt_end=PROMPT_END), loras=(("pirate", 0.5), ("org/sage", -0.25)))
    async with app.run_test(size=SMALL) as pilot:
        await loaded(pilot)
        for count in (1, 2):
            await say(pilot, "hi")
            await answered(pilot, count)
        for name in PANELS:  # each closes the one before
            enter(pilot, name)
            await look_closer(pilot, name)
            await pictures.take(pilot, name, [SMALL])
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(pilot.app.screen, PanelMenu))
        await pictures.take(pilot, "menu")
        await pilot.press("escape")
        chat(pilot).action_toggle_panel("lora")
        await pilot.resize_terminal(*LARGE)
        for names in TOGETHER:
            for name in names:
                enter(pilot, name)
            await pictures.take(pilot, "-".join(names), [LARGE])
            for name in names:
                chat(pilot).action_toggle_panel(name)
        enter(pilot, "dtypes")
        await pilot.press("z")
        await pictures.take(pilot, "full-screen")
