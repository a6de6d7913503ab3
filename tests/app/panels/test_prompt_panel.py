"""The prompt panel: the prompt as the model got it, marked, and drawn only where it is in sight."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from app.panels.prompt_panel import PromptPanel
from app.panels.token_view import TokenView
from tests.app.conftest import MadeApp
from tests.app.panels.conftest import open_panel, shown
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, say, until

MakeApp = Callable[..., MadeApp]


def lines(view: TokenView) -> list[str]:
    return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


async def read(pilot: Pilot[None], text: str) -> TokenView:
    """Say something, and open the panel."""
    await loaded(pilot)
    await say(pilot, text)
    await answered(pilot)
    await open_panel(pilot, "p")
    return chat(pilot).query_one(PromptPanel).query_one(TokenView)


async def test_specials_and_the_reused_part_are_marked_and_ids_shown_on_demand(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(120, 40)) as pilot:
        view = await read(pilot, "hi")
        await until(pilot, lambda: lines(view)[0] == "<s>user: hi")
        assert shown(pilot, "#prompt-head") == "9 tokens · 0 reused from the KV cache · 9 read anew · 1 special"
        special, *_ = view.render_line(0)
        assert special.text == "<s>" and special.style is not None and special.style.bold
        await pilot.press("escape")
        await say(pilot, "and?")
        await answered(pilot, 2)
        # The scripted cache holds what it wrote; what is reused looks other than what is read anew.
        await until(pilot, lambda: "3 reused from the KV cache" in shown(pilot, "#prompt-head"))
        styles = [segment.style for segment in view.render_line(0)]
        marked = [place for place, style in enumerate(styles) if style is not None and style.underline]
        assert marked == [3] and styles[2] != styles[4] and styles[1] == styles[2]
        view.focus()
        await pilot.press("i")
        assert lines(view)[0].startswith("<s>₁u₁₁₇s₁₁₅")
        await pilot.press("i")
        assert lines(view)[0].startswith("<s>user: hi")


async def test_a_hostile_prompt_is_harmless(make_app: MakeApp) -> None:
    app = make_app(Script(prompt_end="\x1b]52;c;aGk=\x07[b]\u202e\u200d"))
    async with app.run_test(size=(120, 40)) as pilot:
        view = await read(pilot, "hi")
        await until(pilot, lambda: view.count > 9)
        text = "".join(lines(view))
        assert text.isprintable() and "␛]52" in text and "[b]" in text


async def test_a_long_prompt_is_drawn_where_it_is_seen(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = PromptPanel._style

    def style(self: PromptPanel, index: int) -> object:
        drawn.append(index)
        return draw(self, index)

    monkeypatch.setattr(PromptPanel, "_style", style)
    async with make_app(Script(prompt_end="word and more. " * 1000)).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "hi")
        await answered(pilot)
        assert not drawn, "closed, it costs nothing"
        began = time.perf_counter()
        await open_panel(pilot, "p")
        view = chat(pilot).query_one(PromptPanel).query_one(TokenView)
        await until(pilot, lambda: view.count > 15_000)
        assert time.perf_counter() - began < 3
        # It shows the end; what is above was never drawn.
        await until(pilot, lambda: view.scroll_offset.y > 100)
        assert len(set(drawn)) < 5_000
