"""The token panel: a mark that moves, what else there was, going on from there, and 30,000 tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.pilot import Pilot

from app.panels.reply_trace import ReplyTrace
from app.panels.token_view import TokenView
from app.panels.tokens_panel import TokensPanel
from inference.events import Alternative, Token
from tests.app.conftest import MadeApp
from tests.app.panels.conftest import open_panel, shown
from tests.app.scripted_engine import PIECE, Script, vocabulary
from tests.app.test_chat import answered, chat, loaded, notifications, say, until

MakeApp = Callable[..., MadeApp]
PIECES = tuple(f" word{place}" for place in range(40))


async def talked(pilot: Pilot[None]) -> tuple[TokensPanel, TokenView]:
    await loaded(pilot)
    await say(pilot, "hi")
    await answered(pilot)
    await open_panel(pilot, "t")
    panel = chat(pilot).query_one(TokensPanel)
    view = panel.query_one(TokenView)
    await until(pilot, lambda: view.count == len(PIECES) and view.has_focus)
    return panel, view


async def test_the_mark_moves_by_tokens_and_lines(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=PIECES)).run_test(size=(120, 40)) as pilot:
        _, view = await talked(pilot)
        assert "token  40 of 40" in shown(pilot, "#token-facts"), "it follows the end"
        await pilot.press("left", "left")
        facts = shown(pilot, "#token-facts")
        assert "token  38 of 40" in facts and "“ word37”" in facts and f"{PIECE + 37:,}" in facts
        assert "20 77 6F 72 64 33 37" in facts
        # The scripted probability of a piece: e to the power of -0.7 for each step of eight.
        assert "1.5%, logprob -4.20" in facts
        await pilot.press("home")
        assert view.cursor == 0
        await pilot.press("down")
        assert view.cursor is not None and view.line_of(view.cursor) == 1 and view.column_of(view.cursor) == 0
        await pilot.press("up", "left", "end", "right")
        assert view.cursor == 39
        marked = [segment.text for y in range(view.size.height) for segment in view.render_line(y) if reverse(segment)]
        assert marked == [" word39"]
        await pilot.click(view, offset=(8, 0))
        assert view.cursor == 1
        # Another reply takes the place of this one, and the mark follows its end.
        await pilot.press("escape")
        await say(pilot, "again")
        await answered(pilot, 2)
        await until(pilot, lambda: view.cursor is None and view.count == len(PIECES))


def reverse(segment: object) -> bool:
    style = getattr(segment, "style", None)
    return bool(style and style.reverse)


async def test_an_alternative_goes_on_from_there(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=PIECES))
    async with app.run_test(size=(80, 24)) as pilot:
        _, view = await talked(pilot)
        await pilot.press("home", "right", "right", "enter")
        alternatives = chat(pilot).query_one("#alternatives")
        await until(pilot, lambda: alternatives.has_focus)
        await pilot.press("escape")
        assert view.has_focus
        await pilot.press("enter", "down", "enter")
        await until(pilot, lambda: len(app.engines[0].begun) == 2 and not chat(pilot).conversation.busy)
        # The tokens are now those of what follows; what stands before them is kept.
        await until(pilot, lambda: view.count == len(PIECES))
        await pilot.press("escape", "home", "enter", "down", "enter")
        await until(pilot, lambda: len(app.engines[0].begun) == 3 and not chat(pilot).conversation.busy)
        assert app.engines[0].begun == ["", " word0 word1 word3", " word0 word1 word3 word1"]
        assert app.engines[0].prompts == [[{"role": "user", "content": "hi"}]] * 3


async def test_a_reply_that_is_not_shown_has_no_branch(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=PIECES))
    async with app.run_test(size=(80, 24)) as pilot:
        _, view = await talked(pilot)
        await pilot.press("escape")
        await say(pilot, "/new")
        await until(pilot, lambda: not chat(pilot).conversation.begun)
        view.focus()
        await pilot.press("home", "enter", "down", "enter")
        await until(pilot, lambda: "is not shown" in notifications(pilot))
        assert app.engines[0].begun == [""]


async def test_digits_where_there_are_no_colours(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=PIECES), settings={"theme": "glass-16"}).run_test(size=(120, 40)) as pilot:
        _, view = await talked(pilot)
        assert view.render_line(0).text.startswith(" word0₄ word1₂ word2₁")
        await pilot.press("d")
        assert view.render_line(0).text.startswith(" word0 word1 word2")


async def test_30000_tokens_stay_smooth(make_app: MakeApp) -> None:
    """Each piece of a reply costs the same, however much stands above it."""
    async with make_app().run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await open_panel(pilot, "t")
        panel, trace = chat(pilot).query_one(TokensPanel), chat(pilot).panels._trace
        trace.vocabulary = vocabulary(PIECES)
        took = [timed(panel, trace, 500) for _ in range(60)]
        view = panel.query_one(TokenView)
        assert view.count == 30_000
        early, late = sorted(took[3:13])[5], sorted(took[-10:])[5]
        print(f"500 tokens: {early * 1e3:.1f} ms at first, {late * 1e3:.1f} ms after 30,000")
        assert late < 3 * early + 0.005
        began = time.perf_counter()
        await pilot.press("home", "end", "up", "left")
        await pilot.pause()
        assert time.perf_counter() - began < 1.0
        assert view.scroll_offset.y > 500


def timed(panel: TokensPanel, trace: ReplyTrace, count: int) -> float:
    for place in range(count):
        id = PIECE + place % len(PIECES)
        trace.hear(Token(id, "", -1.0, tuple(Alternative(id, "", -float(each)) for each in range(8))))
    began = time.perf_counter()
    panel.show_reply()
    return time.perf_counter() - began


async def test_the_reply_that_goes_on_is_another_branch(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=PIECES)).run_test(size=(80, 24)) as pilot:
        await talked(pilot)
        await pilot.press("home", "right", "right", "enter")
        await until(pilot, lambda: chat(pilot).query_one("#alternatives").has_focus)
        await pilot.press("down", "enter")
        tree = chat(pilot).conversation.tree
        question = tree.path()[0].id
        await until(pilot, lambda: len(tree.children(question)) == 2 and not chat(pilot).conversation.busy)
        reply = tree.loaded(tree.path()[-1].id)
        assert reply is not None and reply.text.startswith(" word0 word1 word3")
        assert len(reply.text) > len(" word0 word1 word3")
