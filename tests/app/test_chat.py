"""The chat as a person meets it, over a scripted engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual import events
from textual.css.query import NoMatches
from textual.pilot import Pilot
from textual.widgets import DataTable, Footer, Input, OptionList
from textual.widgets._footer import FooterKey

from app.screens.chat import ChatScreen
from app.screens.help import HelpScreen
from app.screens.models import ModelMenu
from app.settings import Settings, load_settings
from app.widgets.load_bar import LoadBar
from app.widgets.prompt import Prompt
from app.widgets.status_bar import StatusBar
from app.widgets.transcript import Transcript
from inference.errors import BadModelFile, ContextFull
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script

SIZES = [(120, 40), (80, 24)]
MakeApp = Callable[..., MadeApp]


async def until(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 8.0) -> None:
    """Wait until the condition holds."""
    for _ in range(int(seconds * 50)):
        try:
            if condition():
                return
        except NoMatches:  # the screen is not there yet
            pass
        await pilot.pause(0.02)
    raise AssertionError(f"this did not come true; the transcript is:\n{transcript(pilot).text}")


def chat(pilot: Pilot[None]) -> ChatScreen:
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, ChatScreen)
    return screen


def transcript(pilot: Pilot[None]) -> Transcript:
    return chat(pilot).query_one(Transcript)


def prompt(pilot: Pilot[None]) -> Prompt:
    return chat(pilot).query_one(Prompt)


def state(pilot: Pilot[None]) -> str:
    return chat(pilot).query_one(StatusBar).status.state


def notifications(pilot: Pilot[None]) -> str:
    return "\n".join(notification.message for notification in pilot.app._notifications)


async def loaded(pilot: Pilot[None], name: str = "Scripted-135M") -> None:
    await until(pilot, lambda: f"{name} is ready" in transcript(pilot).text)


async def say(pilot: Pilot[None], text: str) -> None:
    await pilot.press(*("space" if character == " " else character for character in text), "enter")


async def answered(pilot: Pilot[None], count: int = 1) -> None:
    await until(pilot, lambda: transcript(pilot).text.count(" tokens · ") == count and not transcript(pilot).writing)


@pytest.mark.parametrize("size", SIZES)
async def test_a_question_is_answered(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=("The sea is **wi", "de** and ", "`deep`.")), system="Be brief.")
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await say(pilot, "hello")
        await answered(pilot)
        text = transcript(pilot).text
        assert "▌ hello" in text
        assert "The sea is wide and deep." in text
        assert "3 tokens" in text and "reused" in text
        assert prompt(pilot).text == ""
        await say(pilot, "more")
        await answered(pilot, 2)
    assert app.engines[0].prompts[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "The sea is **wide** and `deep`."},
        {"role": "user", "content": "more"},
    ]


async def test_keys_typed_fast_keep_their_order(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        for key in ("h", "i", "enter", "n", "e", "w"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else "\r"))
        await answered(pilot)
        assert "▌ hi\n" in transcript(pilot).text
        assert prompt(pilot).text == "new"


@pytest.mark.parametrize("size", SIZES)
async def test_escape_stops_the_reply_and_keeps_the_text(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=tuple(f"w{i} " for i in range(5000)), tokens_per_s=200))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: "w20" in transcript(pilot).text)
        await pilot.press("escape")
        await answered(pilot)
        assert "stopped · " in transcript(pilot).text
        assert state(pilot) == "ready"
        shown = transcript(pilot).text
        await pilot.pause(0.2)
        assert transcript(pilot).text == shown
        await say(pilot, "again")
        await until(pilot, lambda: len(app.engines[0].prompts) == 2)
        kept = app.engines[0].prompts[1][1]["content"]
        assert kept.startswith("w0 w1 ") and kept.split()[-1] in shown
        await pilot.press("escape")


@pytest.mark.parametrize("size", SIZES)
async def test_panels_open_and_close_while_it_talks(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=("word ",) * 3000, tokens_per_s=300))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: "word" in transcript(pilot).text)
        await pilot.press("f2")
        table = chat(pilot).query_one(DataTable)
        await until(pilot, lambda: table.row_count == 27)
        assert str(table.get_row_at(1)[1]) == "matmul norm+qkv"
        assert str(table.get_row_at(1)[3]) == "q4_1"
        detail = chat(pilot).query_one("#plan-detail").render()
        assert "the first that can run" in str(detail) and "gemv_coop" in str(detail)
        await pilot.press("f3")
        memory = chat(pilot).query_one("#memory-body")
        await until(pilot, lambda: "99.0 MiB" in str(memory.render()))
        before = str(memory.render())
        await until(pilot, lambda: str(memory.render()) != before)
        assert chat(pilot).query_one("#dtypes").display is (size[0] >= 100)
        await pilot.press("f3")
        assert not chat(pilot).query_one("#memory").display
        assert pilot.app.focused is prompt(pilot)
        await pilot.press("x")
        assert prompt(pilot).text == "x"
        await pilot.press("escape")


async def test_the_plan_panel_shows_prefill_too(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2", "shift+tab")
        table = chat(pilot).query_one(DataTable)
        await until(pilot, lambda: table.row_count == 27)
        table.focus()
        await pilot.press("p", "down")
        assert "128x576" in str(table.get_row_at(1)[5])
        assert "prefill" in str(chat(pilot).query_one("#dtypes").border_title)
        await pilot.press("escape")
        assert pilot.app.focused is prompt(pilot)


async def test_one_can_type_while_a_model_loads_but_not_send(make_app: MakeApp) -> None:
    async with make_app(Script(load_steps=40, step_s=0.05)).run_test() as pilot:
        await until(pilot, lambda: chat(pilot).query_one(LoadBar).display)
        await say(pilot, "early")
        assert prompt(pilot).text == "early"
        assert "still loading" in notifications(pilot)
        await until(pilot, lambda: "weights" in str(chat(pilot).query_one(LoadBar).render()))
        await pilot.press("escape")
        await until(pilot, lambda: "was cancelled" in transcript(pilot).text)
        assert not chat(pilot).query_one(LoadBar).display
        await pilot.press("enter")
        assert "No model is loaded" in notifications(pilot)
        assert prompt(pilot).text == "early"


async def test_the_first_run_opens_the_menu_on_the_starter(make_app: MakeApp) -> None:
    app = make_app(model="")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelMenu))
        await until(pilot, lambda: pilot.app.screen.query_one(OptionList).highlighted_option is not None)
        assert pilot.app.screen.query_one(OptionList).highlighted_option.id == "gemma-3-270m-it"  # type: ignore[union-attr]
        await pilot.press("enter")
        await loaded(pilot)
        await say(pilot, "hello")
        await answered(pilot)
    assert load_settings(app.settings_file)[0] == Settings(model="gemma-3-270m-it")


async def test_a_path_can_be_typed_and_the_old_model_is_freed(make_app: MakeApp) -> None:
    app = make_app(Script(model="One"), Script(model="Two"))
    async with app.run_test() as pilot:
        await loaded(pilot, "One")
        await pilot.press("f5", "tab")
        assert isinstance(pilot.app.focused, Input)
        await pilot.press("o", "r", "g", "slash", "m", "enter")
        await loaded(pilot, "Two")
        assert "One is unloaded; 129.0 MiB freed." in transcript(pilot).text
        assert app.engines[0].closed and not app.engines[1].closed
        assert chat(pilot).query_one(StatusBar).status.model == "Two"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(load_error=BadModelFile("x.gguf: 12 bytes, expected 24")), "x.gguf: 12 bytes, expected 24"),
        (Script(load_error=RuntimeError("boom")), "Unexpected error, RuntimeError: boom"),
    ],
)
async def test_a_load_that_fails_says_why(make_app: MakeApp, script: Script, message: str) -> None:
    async with make_app(script, Script()).run_test() as pilot:
        await until(pilot, lambda: message in " ".join(transcript(pilot).text.split()))
        assert state(pilot) == "no model"
        await say(pilot, "/model other")
        await loaded(pilot)


async def test_a_reply_that_fails_leaves_the_conversation_as_it_was(make_app: MakeApp) -> None:
    app = make_app(Script(error=ContextFull("99 tokens do not fit the context of 9"), error_after=0))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "one")
        await until(pilot, lambda: "99 tokens do not fit" in transcript(pilot).text and not transcript(pilot).writing)
        assert state(pilot) == "ready"
        await say(pilot, "two")
        await until(pilot, lambda: len(app.engines[0].prompts) == 2)
    assert app.engines[0].prompts[1] == [{"role": "user", "content": "two"}]


async def test_text_that_would_act_on_the_terminal_is_shown_and_kept_raw(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("red \x1b", "[31m[bold]x[/bold]\r", "\nend\u202e")))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        assert "red ␛[31m[bold]x[/bold]\n  end⟨U+202E⟩" in transcript(pilot).text
        await say(pilot, "/copy")
        assert pilot.app.clipboard == "red \x1b[31m[bold]x[/bold]\r\nend\u202e"


async def test_a_paste_of_many_lines_is_one_message(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        pilot.app.post_message(events.Paste("first\nsecond\x1b\nthird"))
        await until(pilot, lambda: "third" in prompt(pilot).text)
        assert prompt(pilot).text == "first\nsecond␛\nthird"
        await pilot.press("ctrl+j", "x")
        assert prompt(pilot).text.endswith("third\nx")
        height = prompt(pilot).size.height
        assert height >= 4
        await pilot.press("enter")
        await answered(pilot)
        assert "▌ first\n  ▌ second␛\n  ▌ third\n  ▌ x" in transcript(pilot).text


async def test_commands(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "/nonsense")
        assert "no command /nonsense" in notifications(pilot)
        prompt(pilot).clear()
        await say(pilot, "/system Be kind.")
        await say(pilot, "hello")
        await answered(pilot)
        assert app.engines[0].prompts[0][0] == {"role": "system", "content": "Be kind."}
        await say(pilot, "/new")
        await until(pilot, lambda: "▌ hello" not in transcript(pilot).text)
        await say(pilot, "/help")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        await pilot.press("escape")
        await say(pilot, "/model")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelMenu))
        await pilot.press("escape")
        await say(pilot, "/quit")
        await pilot.pause(0.2)
    assert app.return_code == 0
    assert app.engines[0].closed


async def test_it_follows_the_end_unless_scrolled_up(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=tuple(f"line {i}\n\n" for i in range(400)), tokens_per_s=150))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        view = transcript(pilot)
        await until(pilot, lambda: view.max_scroll_y > 20)
        assert view.scroll_offset.y == view.max_scroll_y
        await pilot.press("f3")
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        await pilot.press("f3", "pageup")
        at = view.scroll_offset.y
        end = view.max_scroll_y
        await until(pilot, lambda: view.max_scroll_y > end + 10)
        assert view.scroll_offset.y == at
        await pilot.press("ctrl+end")
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        await pilot.press("escape")


async def test_a_new_width_lays_everything_out_again(make_app: MakeApp) -> None:
    words = tuple(f"word{i} " for i in range(60))
    async with make_app(Script(pieces=words)).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        view = transcript(pilot)
        wide = view.text
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: max(map(len, view.text.split("\n"))) < 60 and view.text != wide)
        assert view.text.split() == wide.split()


async def test_what_is_selected_is_copied(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=("first line\n", "second 日本 line"))).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        view = transcript(pilot)
        row = view.text.split("\n").index("  first line") - view.scroll_offset.y
        await pilot.mouse_down(view, offset=(8, row))
        await pilot.hover(view, offset=(11, row + 1))
        await pilot.mouse_up(view, offset=(11, row + 1))
        await pilot.press("ctrl+c")
        assert pilot.app.clipboard == "line\nsecond 日本"


async def test_ctrl_c_without_a_selection_says_how_to_quit(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+c")
        assert "ctrl+q" in notifications(pilot)


async def test_every_binding_has_an_id_and_is_in_footer_or_help(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        own = [*ChatScreen.BINDINGS, *Prompt.BINDINGS, *pilot.app.BINDINGS]
        assert all(binding.id or binding.system for binding in own)  # type: ignore[union-attr]
        footer = chat(pilot).query_one(Footer)
        expected = {"Chats", "Line", "Stop", "Help", "Panels", "Model", "Quit", "All"}
        await until(pilot, lambda: {key.description for key in footer.query(FooterKey)} == expected)
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))


async def test_the_theme_is_kept(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("hello",)))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        app.theme = "glass-light"
        await until(pilot, lambda: load_settings(app.settings_file)[0].theme == "glass-light")
        background = app.theme_variables["background"]
        await until(
            pilot, lambda: transcript(pilot).render_line(0)._segments[0].style.bgcolor.name == background.lower()
        )


async def test_a_very_long_reply_stays_whole(make_app: MakeApp) -> None:
    pieces = tuple(f"Sentence {i} of the reply. " + ("\n\n" if i % 7 == 6 else "") for i in range(6000))
    async with make_app(Script(pieces=pieces)).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: " tokens · " in transcript(pilot).text and not transcript(pilot).writing, 30)
        assert transcript(pilot).line_count < 2100  # of some 2,500
        for _ in range(10):  # what is above is laid out as one scrolls
            transcript(pilot).scroll_to(y=5, animate=False)
            await pilot.pause(0.1)
            await until(pilot, lambda: not chat(pilot).conversation.view.busy)
        body = transcript(pilot).text
        assert [int(part.split()[0]) for part in body.split("Sentence ")[1:]] == list(range(6000))
