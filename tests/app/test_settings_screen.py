"""The settings screen, by keys alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from app.screens.settings import SettingsScreen
from app.settings import Settings, load_settings
from app.settings.values import all_settings
from app.theme import choose_theme, make_look
from inference.sampling import Sampling
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, prompt, say, transcript, until

MakeApp = Callable[..., MadeApp]
SIZES = [(120, 40), (80, 24)]


async def opened(pilot: Pilot[None]) -> SettingsScreen:
    await loaded(pilot)
    await pilot.press("f9")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen))
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    await until(pilot, lambda: screen.query_one("#list", OptionList).option_count > 0)
    return screen


def lines(screen: SettingsScreen) -> dict[str, str]:
    """What is listed, by the names of settings."""
    return {option.id: str(option.prompt) for option in screen.query_one("#list", OptionList).options if option.id}


async def find(pilot: Pilot[None], word: str) -> None:
    """Search, and go to the first setting found."""
    search = pilot.app.screen.query_one("#search", Input)
    search.value = word
    search.focus()
    await pilot.press("enter")


def detail(screen: SettingsScreen) -> str:
    return str(screen.query_one("#detail", Static).content)


def saved(app: MadeApp) -> Settings:
    return load_settings(app.settings_file)[0]


async def test_changes_are_saved_at_once_and_take_effect(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("hello",)))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        assert {name for name in lines(screen) if "." not in name} == {
            name for name, setting in all_settings().items() if not setting.table
        }
        await find(pilot, "top_p")
        await pilot.press("enter", "ctrl+u", "0", "enter")
        assert "Expected a number above 0, up to 1." in detail(screen)
        assert saved(app).top_p == Settings().top_p
        await pilot.press("full_stop", "5", "enter")
        assert saved(app).top_p == 0.5
        assert "top_p · default: 0.95 · a change works with the next reply" in detail(screen)
        assert "from the file" in lines(screen)["top_p"]
        await find(pilot, "layout")
        await pilot.press("enter", "down", "enter")
        await until(pilot, lambda: saved(app).kv == "contiguous")
        app._settings.run("reduced_motion on")
        assert saved(app).reduced_motion
        assert app.animation_level == "none"
        await find(pilot, "system")
        await pilot.press("enter", "B", "enter", "c", "escape")
        assert saved(app).system == "B\nc"
        await pilot.press("escape")
        assert app.screen is chat(pilot)
        assert not prompt(pilot).cursor_blink
        await say(pilot, "go")
        await answered(pilot)
    assert app.engines[0].samplings == [Sampling(top_p=0.5)]


async def test_what_cannot_be_taken_is_told_and_stays_as_it_was(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await find(pilot, "context")
        await pilot.press("tab", "6", "tab")
        assert saved(app).context == 6
        await pilot.press("tab", "x")
        assert "Expected a whole number from 1 on." in detail(screen)
        await pilot.press("escape")
        assert "It stays as it was: expected a whole number from 1 on." in detail(screen)
        assert saved(app).context == 6
        await pilot.press("ctrl+r")
        assert (saved(app).context, "from" in lines(screen)["context"]) == (None, False)


async def test_the_search_leaves_what_fits(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await pilot.press("ctrl+f", *"pena")
        assert list(lines(screen)) == ["repetition", "frequency", "presence"]
        await pilot.press("z", "enter", "enter", "ctrl+r")
        assert lines(screen) == {}
        await pilot.press("ctrl+f", "ctrl+u")
        assert len(lines(screen)) > 30


async def test_a_switch_is_changed_where_it_stands(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await find(pilot, "history")
        await pilot.press("enter")
        assert (saved(app).history, " off " in lines(screen)["history"]) == (False, True)


async def test_keys_are_chosen_on_the_screen(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        await find(pilot, "chat.kv")
        await pilot.press("enter", "ctrl+u", "f", "3", "enter")
        assert "F3 is the key of chat.memory" in detail(screen)
        await pilot.press("ctrl+u", "f", "1", "0", "enter", "escape")
        assert saved(app).keys == {"chat.kv": "f10"}
        await pilot.press("f10")
        assert chat(pilot).query_one("#kv").display


async def test_the_model_that_a_flag_names_is_remembered(make_app: MakeApp) -> None:
    app = make_app(model="first")
    app._settings.sources = replace(app._settings.sources, flags={"model": "first"})
    async with app.run_test() as pilot:
        await until(pilot, lambda: saved(app).model == "first")


async def test_what_cannot_be_saved_holds_for_this_run(make_app: MakeApp) -> None:
    app = make_app(settings={"theme": "gone"})
    app.settings_file.write_text("[broken")
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app._settings.run("theme glass-light")
        assert app.theme == "glass-light"
        await until(pilot, lambda: "could not be saved" in transcript(pilot).text)
        # Told once, at the start.
        assert transcript(pilot).text.count("There is no theme gone") == 1
    assert app.settings_file.read_text() == "[broken"


@pytest.mark.parametrize(
    ("wanted", "colours", "theme"),
    [
        ("auto", "truecolor", "glass"),
        ("auto", "256", "glass"),
        ("auto", "standard", "glass-16"),
        ("auto", None, "glass-16"),
        ("glass-light", "standard", "glass-light"),
        ("gone", "truecolor", "glass"),
    ],
)
def test_the_theme_follows_the_terminal_unless_chosen(wanted: str, colours: str | None, theme: str) -> None:
    assert choose_theme(wanted, ("glass", "glass-light", "glass-16"), colours) == theme


async def test_the_theme_of_16_colours_has_no_other(make_app: MakeApp) -> None:
    async with make_app(settings={"theme": "glass-16"}).run_test() as pilot:
        await loaded(pilot)
        look = make_look(pilot.app.theme_variables)
        colours = [style.color for style in vars(look).values() if style.color is not None]
        assert all(colour.is_system_defined for colour in colours)


def test_settings_look_in_16_colours(snap_compare: Any, make_app: MakeApp, steady: None) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await find(pilot, "context")
        await pilot.press("enter", "x")
        await pilot.pause(0.1)

    app = make_app(settings={"theme": "glass-16", "context": 4096})
    assert snap_compare(app, terminal_size=(80, 24), run_before=run_before)
