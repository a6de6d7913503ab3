"""The help for where a person is, and the guide of the first start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app import cli
from app.chat_app import ChatApp
from app.help_topics import topic_of
from app.panels.names import PANELS
from app.screens.adapter_picker import AdapterPicker
from app.screens.help import HelpScreen
from app.screens.models import ModelMenu
from app.screens.panel_menu import PanelMenu
from app.screens.settings import SettingsScreen
from app.widgets.guide import Guide
from app.widgets.history_sidebar import HistorySidebar
from app.widgets.prompt import Prompt
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, say, until

MakeApp = Callable[..., MadeApp]
Sections = dict[str, dict[str, str]]


async def helped(pilot: Pilot[None], where: str) -> Sections:
    """What F1 shows, which must be of that place: by headings what is done, with its keys; and closes it again."""
    await pilot.press("f1")
    await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
    screen = pilot.app.screen
    assert isinstance(screen, HelpScreen)
    assert screen._topic.title == where
    assert screen._topic.text.count(". ") + 1 == 2, "two sentences"
    await pilot.press("f1")
    await until(pilot, lambda: pilot.app.screen is not screen)
    return {head: {what: key for key, what in rows} for head, rows in screen.sections}


async def test_help_in_the_chat(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("hello",)), settings={"keys": {"prompt.send": "ctrl+s", "history.rename": "e"}})
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        found = await helped(pilot, "The message box")
        assert found["Here"]["Send the message"] == "^s"
        assert found["To begin"]["send what you wrote; ^j begins a new line"] == "^s"
        assert found["In the chat"]["Stop the reply, keeping its text, or the load"] == "esc"
        assert found["Everywhere"]["Leave Glasschat"] == "^q"
        assert {"/model", "/quit"} <= set(found["Commands, typed as a message"].values())
        await pilot.press("h", "i", "ctrl+s")
        await answered(pilot)
        await pilot.press("alt+up")
        found = await helped(pilot, "A chosen message")
        assert found["Here"]["Copy the message"] == "alt+c" and "Copy the message" not in found["In the chat"]
        await pilot.press("escape", "f8")
        await until(pilot, lambda: chat(pilot).query_one(HistorySidebar).has_focus_within)
        found = await helped(pilot, "Conversations")
        assert found["Here"]["Rename"] == "e" and found["Here"]["Delete"] == "d, del"
        assert "To begin" not in found


async def test_help_in_each_panel(make_app: MakeApp) -> None:
    titles = {"kv": "KV map", "lora": "LoRA adapters"}
    keys = {
        "dtypes": ("Prefill/decode", "p"),
        "kernels": ("Time every operation", "f11"),
        "tokens": ("Show or hide probabilities as digits", "d"),
        "prompt": ("Show or hide the ids of tokens", "i"),
        "lora": ("Add an adapter", "a"),
    }
    app = make_app(Script(pieces=("hello", " you")), settings={"keys": {"kernels.time": "f11"}}, loras=(("pirate", 1),))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for name, panel in PANELS.items():
            chat(pilot).action_toggle_panel(name)
            chat(pilot).panels._enter(name)
            await until(pilot, lambda: not chat(pilot).query_one(Prompt).has_focus)
            here = (await helped(pilot, titles.get(name, panel.title)))["Here"]
            assert here["Larger"] == ">"
            if name in keys:
                what, key = keys[name]
                assert here[what] == key
            chat(pilot).action_toggle_panel(name)


async def test_help_over_dialogs(make_app: MakeApp) -> None:
    async with make_app(settings={"keys": {"settings.reset": "f12"}}).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for keys, screen, title, what, key in (
            (("f9",), SettingsScreen, "Settings", "Back to the default", "f12"),
            (("f5",), ModelMenu, "Models", "Close", "esc, f5"),
            (("f7",), PanelMenu, "Panels", "Timing", "s"),
            (("f6", "a"), AdapterPicker, "Adding an adapter", "The folder above", "⌫"),
        ):
            await pilot.press(*keys)
            await until(pilot, lambda screen=screen: isinstance(pilot.app.screen, screen))  # type: ignore[misc]
            found = await helped(pilot, title)
            assert found["Here"][what] == key and "Leave Glasschat" in found["Everywhere"]
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is chat(pilot))


def test_a_place_without_a_text_has_its_keys() -> None:
    assert topic_of(ChatApp, ("app.quit",)).ids == ("app.quit",)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_the_guide_goes_with_the_first_message(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=("hello",)), settings={"keys": {"chat.models": "f10"}}, guide=True)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        guide, box = chat(pilot).query_one(Guide), chat(pilot).query_one(Prompt)
        assert guide.region.bottom <= box.region.y
        svg = app.export_screenshot(simplify=True).replace("&#160;", " ")
        assert all(text in svg for text in ("To begin", "f10", "this guide too"))
        await pilot.press("f3")
        await until(pilot, lambda: not guide.display)
        await pilot.press("f3")
        await until(pilot, lambda: guide.display)
        await say(pilot, "/kv")
        assert guide.display
        await say(pilot, "hi")
        await answered(pilot)
        assert not chat(pilot).query(Guide)
        await say(pilot, "/new")
        await until(pilot, lambda: "A new conversation" in chat(pilot).query_one("#transcript").text)  # type: ignore[attr-defined]
        assert not chat(pilot).query(Guide)


@pytest.mark.parametrize(
    ("kept", "history", "shown"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_the_guide_is_for_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool, history: bool, shown: bool
) -> None:
    seen = []
    monkeypatch.setattr(ChatApp, "run", lambda app: seen.append(app._start.guide))
    monkeypatch.setattr(cli, "history_path", lambda: tmp_path / "history.db")
    if kept:
        (tmp_path / "history.db").touch()
    sources = cli.read_sources(tmp_path / "settings.toml", {}, {})
    assert cli._screen({"history": history, "model": "m"}, sources) == 0
    assert seen == [shown]
