"""The KV cache as a person meets it in the chat: the map, and changing the layout."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from app.panels.kv_panel import KvPanel
from app.screens.models import ModelMenu
from tests.app.scripted_engine import Script
from tests.app.test_chat import (
    SIZES,
    MakeApp,
    answered,
    chat,
    loaded,
    notifications,
    say,
    state,
    transcript,
    until,
)


def said(pilot: Pilot[None]) -> str:
    """The transcript without its line breaks."""
    return " ".join(transcript(pilot).text.split())


@pytest.mark.parametrize("size", SIZES)
async def test_the_map_is_live_while_a_reply_is_written(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=tuple(f"w{i} " for i in range(5000)), tokens_per_s=100))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await pilot.press("f4")
        panel = chat(pilot).query_one(KvPanel)

        def shown() -> str:
            return str(panel.query_one("#kv-body", Static).render())

        await until(pilot, lambda: panel.display and "▁ free" in shown())
        assert "█" not in shown()
        await say(pilot, "go")
        await until(pilot, lambda: "█ kept" in shown())
        await until(pilot, lambda: "░ outside the window" in shown())
        await pilot.press("f4")
        assert not panel.display
        before = shown()
        await pilot.pause(0.5)
        assert shown() == before, "it is drawn while it is closed"
        await pilot.press("f4")
        await until(pilot, lambda: shown() != before)
        await pilot.press("escape")


async def test_panels_share_a_small_window_and_stand_together_in_a_large_one(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        panels = [chat(pilot).query_one(f"#{name}") for name in ("dtypes", "memory", "kv")]
        for index, key in enumerate(("f2", "f3", "f4")):
            await pilot.press(key)
            assert [panel.display for panel in panels] == [at == index for at in range(3)]
        await pilot.resize_terminal(120, 40)
        await pilot.press("f2", "f3")
        assert all(panel.display for panel in panels)


async def test_another_layout_loads_the_model_anew_and_keeps_the_conversation(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "one")
        await answered(pilot)
        await say(pilot, "/kv tiered-int8")
        await until(pilot, lambda: "read anew with your next message" in said(pilot))
        assert "KV layout: tiered-int8." in said(pilot)
        assert [engine.kv for engine in app.engines] == ["auto", "tiered-int8"]
        assert app.engines[0].closed
        await say(pilot, "two")
        await answered(pilot, 2)
        await say(pilot, "/kv tiered-int8")
        assert "is tiered-int8 already" in notifications(pilot)
        await say(pilot, "/model other")
        await until(pilot, lambda: len(app.engines) == 3)
        assert app.engines[2].kv == "tiered-int8"
    assert [turn["content"] for turn in app.engines[1].prompts[0]] == ["one", "Hello there!", "two"]


async def test_a_layout_that_cannot_be_used_costs_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "/kv ring")
        await until(pilot, lambda: "first has none" in said(pilot))
        assert state(pilot) == "ready"
        assert not app.engines[0].closed
        await say(pilot, "hello")
        await answered(pilot)
        await say(pilot, "/kv heap")
        assert "There is no KV layout heap." in said(pilot)
        assert "bdpa: the first keys" in said(pilot) and "It is auto now" in said(pilot)


@pytest.mark.parametrize("typed", ["/kv paged", "/place 3"])
async def test_what_loads_the_model_anew_waits_for_a_reply(make_app: MakeApp, typed: str) -> None:
    app = make_app(Script(pieces=("w ",) * 500, tokens_per_s=100))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: state(pilot) == "writing")
        await say(pilot, typed)
        assert f"Esc stops it, then {typed}" in notifications(pilot)
        await pilot.press("escape")
        await answered(pilot)
    assert len(app.engines) == 1


async def test_the_layout_waits_for_a_model(make_app: MakeApp) -> None:
    app = make_app(model="")
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelMenu))
        await pilot.press("escape")
        await say(pilot, "/kv paged")
        await say(pilot, "/model first")
        await loaded(pilot)
    assert app.engines[0].kv == "paged"
