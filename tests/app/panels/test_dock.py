"""The dock: any panels together in sizes that are kept, one on the whole screen, one where the window is small."""

from __future__ import annotations

from collections.abc import Callable

from textual.pilot import Pilot
from textual.widget import Widget

from app.panels.names import PANELS
from app.screens.panel_menu import PanelMenu
from app.settings import load_settings
from app.widgets.prompt import Prompt
from tests.app.conftest import MadeApp
from tests.app.panels.conftest import open_panel
from tests.app.test_chat import chat, loaded, prompt, transcript, until

MakeApp = Callable[..., MadeApp]
BELOW = [name for name in PANELS if name not in ("memory", "timing")]


def panel(pilot: Pilot[None], name: str) -> Widget:
    return chat(pilot).panels._by_name[name]


def open_names(pilot: Pilot[None]) -> set[str]:
    return {name for name in PANELS if panel(pilot, name).display}


async def test_all_panels_stand_together_and_the_chat_stays(make_app: MakeApp) -> None:
    async with make_app(settings={"open_panels": tuple(PANELS)}).run_test(size=(200, 60)) as pilot:
        await loaded(pilot)
        await pilot.pause()
        assert open_names(pilot) == set(PANELS)
        regions = [panel(pilot, name).region for name in PANELS] + [transcript(pilot).region, prompt(pilot).region]
        for place, region in enumerate(regions):
            assert region.width >= 40 and region.height >= 3
            assert region in chat(pilot).region
            assert not any(region.overlaps(other) for other in regions[:place])
        # Three in a row, of which all are equally high.
        assert len({panel(pilot, name).region.y for name in BELOW}) == 2


async def test_a_row_with_a_gap_is_filled_and_a_panel_that_does_not_exist_is_told(make_app: MakeApp) -> None:
    settings = {"open_panels": ("kv", "clock", "tokens", "lora"), "panel_sizes": {"dials": 9}}
    async with make_app(settings=settings).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await until(pilot, lambda: "There is no panel clock" in transcript(pilot).text)
        assert "There is no panel dials" in transcript(pilot).text
        last = panel(pilot, "lora")
        assert last.region.width == panel(pilot, "kv").region.width + panel(pilot, "tokens").region.width
        await pilot.press("f4")
        await pilot.pause()
        assert panel(pilot, "tokens").region.y == last.region.y
        assert panel(pilot, "tokens").region.width == last.region.width


async def test_what_is_open_and_how_large_is_kept(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await open_panel(pilot, "t")
        await pilot.press("f3")
        height = panel(pilot, "tokens").region.height
        await pilot.press(">", ">", "<", ">")
        await pilot.pause()
        assert panel(pilot, "tokens").region.height == height + 4
        panel(pilot, "memory").focus()
        width = panel(pilot, "memory").region.width
        await pilot.press("<")
        await pilot.pause()
        assert panel(pilot, "memory").region.width == width - 4
        await pilot.pause(0.4)  # a size is kept once it rests
    settings, notice = load_settings(app.settings_file)
    assert notice == "" and settings.open_panels == ("tokens", "memory")
    assert settings.panel_sizes == {"tokens": height + 4, "memory": width - 4}
    again = make_app(settings={"open_panels": settings.open_panels, "panel_sizes": settings.panel_sizes})
    async with again.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.pause()
        assert open_names(pilot) == {"tokens", "memory"}
        assert panel(pilot, "tokens").region.height == height + 4


async def test_a_panel_on_the_whole_screen(make_app: MakeApp) -> None:
    name = "timing"
    async with make_app().run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await open_panel(pilot, PANELS[name].key)
        before = panel(pilot, name).region
        for leave in ("escape", "z"):
            await pilot.press("z")
            await pilot.pause()
            whole = panel(pilot, name).region
            assert whole.width >= 78 and whole.height >= 22, "all but the footer"
            await pilot.press(leave)
            await pilot.pause()
            assert panel(pilot, name).region == before
        await pilot.press("z", "f7")
        await until(pilot, lambda: isinstance(pilot.app.screen, PanelMenu))
        await pilot.press(PANELS[name].key)
        await until(pilot, lambda: pilot.app.screen is chat(pilot))
        # Closed from the whole screen, it gives both back.
        await until(pilot, lambda: chat(pilot).maximized is None and isinstance(pilot.app.focused, Prompt))
        assert open_names(pilot) == set()


async def test_a_small_window_shows_one_panel_and_a_large_one_all(make_app: MakeApp) -> None:
    async with make_app(settings={"open_panels": ("kv", "memory", "tokens")}).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.pause()
        assert open_names(pilot) == {"tokens"}
        assert transcript(pilot).region.height >= 4
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: open_names(pilot) == {"kv", "memory", "tokens"})
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: open_names(pilot) == {"tokens"})


async def test_the_menu_has_every_panel_with_its_keys(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for name in ("dtypes", "memory", "kv", "lora"):
            await open_panel(pilot, PANELS[name].key)
            assert open_names(pilot) == {name}
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(pilot.app.screen, PanelMenu))
        lines = [str(option.prompt) for option in pilot.app.screen.query_one("OptionList").options]  # type: ignore[attr-defined]
        assert [line[0] for line in lines] == ["○"] * 7 + ["●"]
        assert [name for name, line in zip(PANELS, lines, strict=True) if "f2" in line.lower()] == ["dtypes"]
        await pilot.press("down", "enter")
        await until(pilot, lambda: open_names(pilot) == {"kernels"})
