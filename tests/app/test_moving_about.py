"""Keys that go from place to place: in the transcript, the sidebar and the panels, to the palette and out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.command import CommandPalette

from app.panels.lora_row import LoraRow
from app.panels.token_view import TokenView
from app.widgets.conversation_list import ConversationList
from app.widgets.history_sidebar import HistorySidebar
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, prompt, say, transcript, until
from tests.app.test_history import fill

MakeApp = Callable[..., MadeApp]


async def test_in_the_transcript(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=tuple(f"line {i}\n\n" for i in range(60)))).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        view = transcript(pilot)
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y > 60)
        await pilot.press("ctrl+home")
        assert view.scroll_offset.y == 0
        await pilot.press("pagedown")
        assert 10 < view.scroll_offset.y < 24
        await pilot.press("pageup")
        assert view.scroll_offset.y == 0
        await pilot.press("ctrl+end")
        assert view.scroll_offset.y == view.max_scroll_y


async def test_in_the_sidebar_and_into_a_fork(make_app: MakeApp, tmp_path: Path) -> None:
    fill(tmp_path / "history.db", "Tides", "Moons")
    async with make_app(history=tmp_path / "history.db").run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        rows, sidebar = chat(pilot).query_one(ConversationList), chat(pilot).query_one(HistorySidebar)
        await until(pilot, lambda: len(rows.hits) == 2)
        await pilot.press("slash")
        assert not rows.has_focus
        await pilot.press("down")
        assert rows.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: prompt(pilot).has_focus)
        assert sidebar.display
        await say(pilot, "hi")
        await answered(pilot)
        first = chat(pilot).history.current
        await say(pilot, "/fork")
        await until(pilot, lambda: chat(pilot).history.current != first and "▌ hi" in transcript(pilot).text)


async def test_among_the_adapters(make_app: MakeApp) -> None:
    async with make_app(loras=(("pirate", 0.5), ("sage", 1.0))).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f6")
        rows = list(chat(pilot).query(LoraRow))
        await until(pilot, lambda: rows[0].has_focus)
        await pilot.press("down", "up", "shift+right")
        assert rows[0].has_focus and rows[0].strength == 0.51 and rows[1].strength == 1.0


async def test_in_the_prompt_panel(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=("word\n",) * 40)).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for count in (1, 2):
            await say(pilot, "hi")
            await answered(pilot, count)
        chat(pilot).action_toggle_panel("prompt")
        chat(pilot).panels._enter("prompt")
        view = chat(pilot).query_one("#prompt-tokens", TokenView)
        await until(pilot, lambda: view.has_focus and view.max_scroll_y > 10)
        for key, row in (("home", 0), ("down", 1), ("up", 0), ("end", view.max_scroll_y)):
            await pilot.press(key)
            await until(pilot, lambda row=row: view.scroll_offset.y == row)  # type: ignore[misc]


async def test_to_the_palette_and_out(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
        await pilot.press("ctrl+q")
        await pilot.pause(0.1)
    assert app.return_code == 0 and app.engines[0].closed
