"""What the panels look like; `pytest --snapshot-update` after a change that was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.app.conftest import MadeApp
from tests.app.panels.conftest import open_panel, shown
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, loaded, say, until

PIECES = ("The", " sea", " rises", " and", " falls", " twice", " a", " day", ",", " because", " of", " the", " moon",
          " and", ",", " less", " so", ",", " the", " sun", ".", "\n", "\n", "Spring", " tides", " are", " high", "; ",
          "n", "e", "ap", " tides", " are", " low", ".")  # fmt: skip
PROMPT_END = "<think> 東京 \x1b[2J"
TOGETHER = [("kernels", "timing"), ("prompt", "tokens"), ("menu",)]
ALONE = [("kernels",), ("timing",), ("prompt",), ("tokens",), ("menu",)]
KEYS = {"kernels": "k", "timing": "s", "prompt": "p", "tokens": "t"}


async def show(pilot: Pilot[None], panels: tuple[str, ...]) -> None:
    """Two replies, the panels, times in that of kernels and alternatives in that of tokens."""
    await loaded(pilot)
    for count, text in enumerate(("hi", "so?"), 1):
        await say(pilot, text)
        await answered(pilot, count)
    for name in panels:
        if name == "menu":
            await pilot.press("f7")
            continue
        await open_panel(pilot, KEYS[name])
        if name == "kernels":
            await pilot.press("down", "enter", "t")
            await until(pilot, lambda: "for all operations" in shown(pilot, "#kernel-times"))
        if name == "tokens":
            await until(pilot, lambda: "35 of 35" in shown(pilot, "#token-facts"))
            await pilot.press("left", "left", "left", "enter")
    await pilot.pause(0.3)


@pytest.mark.parametrize(
    ("size", "panels"),
    [*(((120, 40), each) for each in TOGETHER), *(((80, 24), each) for each in ALONE)],
    ids=lambda value: "-".join(map(str, value)),
)
def test_panels(
    snap_compare: Any,
    make_app: Callable[..., MadeApp],
    steady: None,
    monkeypatch: pytest.MonkeyPatch,
    size: Any,
    panels: tuple[str, ...],
) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await show(pilot, panels)

    monkeypatch.setattr("app.panels.reply_trace.time.thread_time", lambda: 0.0)
    assert snap_compare(
        make_app(Script(pieces=PIECES, prompt_end=PROMPT_END)), terminal_size=size, run_before=run_before
    )
