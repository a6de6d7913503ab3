"""The prompt as a person meets it: lines, pastes, completion, files, what was sent before, the editor, the forecast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from app.widgets.completion_list import CompletionList
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, loaded, notifications, prompt, say, transcript, until

MakeApp = Callable[..., MadeApp]


def choices(pilot: Pilot[None]) -> list[str]:
    """The labels in the list above the prompt; none while it is not shown."""
    found = pilot.app.screen_stack[0].query_one(CompletionList)
    return [choice.label for choice in found.completions.choices] if found.display and found.completions else []


def paste(pilot: Pilot[None], text: str) -> None:
    prompt(pilot).post_message(events.Paste(text))


def forecast(pilot: Pilot[None]) -> str:
    """What is said in the prompt's border."""
    words = prompt(pilot)._border_subtitle
    return words.plain if words else ""


def sent(app: MadeApp) -> list[str]:
    """What the model was told, message by message."""
    return [turn["content"] for turn in app.engines[-1].prompts[-1] if turn["role"] == "user"]


async def type(pilot: Pilot[None], text: str) -> None:
    for character in text:
        pilot.app.post_message(events.Key(character, character))
    await pilot.pause()


@pytest.mark.parametrize("height", [24, 40])
async def test_it_grows_to_a_third_of_the_screen(make_app: MakeApp, height: int) -> None:
    async with make_app(model="missing").run_test(size=(80, height)) as pilot:
        assert prompt(pilot).outer_size.height == 3
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert prompt(pilot).text == "a\nb\nc"
        await until(pilot, lambda: prompt(pilot).outer_size.height == 5)
        paste(pilot, "\n" * 20)
        await until(pilot, lambda: height * 0.3 < prompt(pilot).outer_size.height <= height * 0.36)


async def test_a_paste_is_one_paste_and_never_sends(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        paste(pilot, "one\r\ntwo\rthree \x1b[31m\n/quit\n")
        await pilot.pause()
        assert prompt(pilot).text == "one\ntwo\nthree ␛[31m\n/quit\n"
        assert app.engines[0].prompts == []
        await pilot.press("ctrl+z")
        assert prompt(pilot).text == ""


async def test_a_huge_paste_is_a_label_and_typing_stays_fast(make_app: MakeApp) -> None:
    huge = "".join(f"line {number}: ünïcode 日本語 and some more of it\n" for number in range(24_000))
    assert len(huge.encode()) > 1_000_000
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        await type(pilot, "sum up: ")
        before = time.perf_counter()
        paste(pilot, huge)
        await until(pilot, lambda: prompt(pilot).text == "sum up: [pasted 24,001 lines]")
        pasted = time.perf_counter() - before
        latencies = []
        for count in range(1, 16):
            before = time.perf_counter()
            pilot.app.post_message(events.Key("x", "x"))
            await until(pilot, lambda count=count: prompt(pilot).text.endswith("]" + "x" * count))
            latencies.append(time.perf_counter() - before)
        print(f"paste {pasted * 1e3:.0f} ms, then a key at most {max(latencies) * 1e3:.0f} ms")
        assert pasted < 0.5 and max(latencies) < 0.15
        await until(pilot, lambda: forecast(pilot).endswith("of 2,048, too long"))


async def test_a_label_is_one_character_and_its_text_is_sent(make_app: MakeApp) -> None:
    app, long = make_app(), "\n".join(["a line"] * 100)
    async with app.run_test() as pilot:
        await loaded(pilot)
        await type(pilot, "sum up: ")
        paste(pilot, long)
        await pilot.press("x", "left", "left", "y", "end", "backspace", "backspace")
        assert prompt(pilot).text == "sum up: y"
        await pilot.press("ctrl+z", "enter")
        await answered(pilot)
        assert sent(app) == [f"sum up: y{long}x"]
        await pilot.press("up")
        assert prompt(pilot).text == "[pasted 100 lines]"


async def test_a_long_paste_can_be_opened_in_the_editor(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = []

    @contextmanager
    def suspend(app: MadeApp) -> Iterator[None]:
        yield
        resumed.append(app)  # as in Textual, not after an exception

    monkeypatch.setattr("app.chat_app.ChatApp.suspend", suspend)
    (tmp_path / "editor.py").write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "text = path.read_text()\n"
        "path.write_text(f'{len(text.splitlines())} lines') if 'fail' not in text else sys.exit(2)\n"
    )
    app = make_app(editor=f"{sys.executable} {tmp_path / 'editor.py'}")
    async with app.run_test() as pilot:
        paste(pilot, "line\n" * 1000)
        await type(pilot, "end")
        await pilot.press("ctrl+g")
        assert prompt(pilot).text == "1001 lines"
        await type(pilot, " fail")
        await pilot.press("ctrl+g")
        assert prompt(pilot).text == "1001 lines fail"
        assert "ended with code 2; the message stays as it was." in notifications(pilot)
        assert len(resumed) == 2


async def test_no_editor_where_the_terminal_cannot_be_left(make_app: MakeApp) -> None:
    async with make_app(model="missing").run_test() as pilot:
        await type(pilot, "text")
        await pilot.press("ctrl+g")
        assert prompt(pilot).text == "text"
        assert "cannot be left to an editor" in notifications(pilot)


async def test_up_and_down_call_back_what_was_sent(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        await type(pilot, "first")
        await pilot.press("enter")
        await answered(pilot)
        await type(pilot, "/kv")
        await pilot.press("enter")
        await until(pilot, lambda: prompt(pilot).text == "")
        paste(pilot, "two\nlines")
        await pilot.press("enter")
        await answered(pilot, 2)
        await type(pilot, "/nothing")
        await pilot.press("enter")  # is refused, so it is not sent
        await pilot.press("ctrl+u")
        await type(pilot, "draft")
        await pilot.press("up")
        assert prompt(pilot).text == "two\nlines"
        await pilot.press("up")
        await pilot.pause(0.05)
        assert prompt(pilot).text == "/kv" and choices(pilot) == []  # no list that would take the next key
        await pilot.press("up", "up")
        assert prompt(pilot).text == "first"
        await pilot.press("down", "down", "down")
        assert prompt(pilot).text == "draft"
        await pilot.press("up", "down")  # goes down within the text
        assert prompt(pilot).text == "two\nlines"


async def test_what_was_sent_before_the_last_start_comes_back_too(make_app: MakeApp, tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    async with make_app(history=history).run_test() as pilot:
        await loaded(pilot)
        await type(pilot, "before")
        await pilot.press("enter")
        await answered(pilot)
    async with make_app(history=history).run_test() as pilot:
        await loaded(pilot)
        await pilot.press("up")
        assert prompt(pilot).text == "before"


async def test_commands_are_completed(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await type(pilot, "/")
        await until(pilot, lambda: "/kv [LAYOUT]" in choices(pilot))
        await type(pilot, "kv")
        await until(pilot, lambda: choices(pilot) == ["/kv [LAYOUT]"])
        await pilot.press("up", "end")  # not for the list, which has no other choice
        await pilot.press("tab")
        assert prompt(pilot).text == "/kv "
        await until(pilot, lambda: "paged" in choices(pilot))
        await pilot.press("down", "down", "up", "enter")  # who has gone to a choice takes it with Enter
        assert prompt(pilot).text == "/kv contiguous"
        assert len(app.engines) == 1
        await pilot.press("enter")
        await until(pilot, lambda: len(app.engines) == 2 and app.engines[1].kv == "contiguous")


async def test_escape_closes_the_list_and_then_goes_on_to_what_it_did(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=("a ",) * 5000, tokens_per_s=200)).run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: transcript(pilot).writing)
        await type(pilot, "/")
        await until(pilot, lambda: bool(choices(pilot)))
        await pilot.press("escape")
        assert choices(pilot) == [] and transcript(pilot).writing
        await pilot.press("escape")
        await answered(pilot)


async def test_what_is_typed_faster_than_the_list_comes_is_completed(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        for key in ("/", "m", "o", "tab", "f", "i", "backspace", "x"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: prompt(pilot).text == "/model fx")
        assert prompt(pilot).has_focus


async def test_arguments_are_completed(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    expected = {
        "/model ": "smollm2-135m-instruct",
        "/kv tiered-int": "tiered-int8",
        "/lora pir": "pirate",
        "/lora drop ": "pirate",
        "see @conf": "conftest.py",
        "/export __s": "__snapshots__/",
    }
    async with make_app(loras=(("pirate", 0.5),)).run_test() as pilot:
        await loaded(pilot)
        await until(pilot, lambda: "LoRA: pirate" in transcript(pilot).text)
        for typed, first in expected.items():
            paste(pilot, typed)
            await until(pilot, lambda first=first: choices(pilot)[:1] == [first])
            await pilot.press("ctrl+u")


async def test_a_click_takes_a_choice(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await type(pilot, "/")
        await until(pilot, lambda: bool(choices(pilot)))
        await pilot.click(CompletionList, offset=(4, 2))
        await until(pilot, lambda: prompt(pilot).text == "/kv ")
        assert prompt(pilot).has_focus


async def test_a_file_is_counted_and_sent(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "about \x1b[31mtides [/]\n"
    (tmp_path / "notes.txt").write_text(text)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await type(pilot, "see @notes.txt")
        expected = f"see @notes.txt\n\nnotes.txt:\n```txt\n{text}```"
        counted = f"notes.txt {len(text)} · {len(expected)} tokens · {len(expected) + len('user: ') + 1} of 2,048"
        await until(pilot, lambda: forecast(pilot) == counted)
        await pilot.press("enter")
        await answered(pilot)
        assert sent(app) == [expected]
        assert "␛[31mtides" in transcript(pilot).text
        await pilot.press("up")
        assert prompt(pilot).text == "see @notes.txt"


async def test_what_cannot_be_attached_stays_in_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await type(pilot, "see @[b]gone.txt")
        await until(pilot, lambda: "@[b]gone.txt cannot be attached: there is no" in forecast(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "@[b]gone.txt cannot be attached" in notifications(pilot))
        assert prompt(pilot).text == "see @[b]gone.txt"
        assert app.engines[0].prompts == []


async def test_the_forecast_warns_also_while_a_reply_is_written(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("a ",) * 5000, tokens_per_s=200))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await type(pilot, "hi")
        await until(pilot, lambda: forecast(pilot) == "2 tokens · 9 of 2,048")
        await pilot.press("enter")
        await until(pilot, lambda: transcript(pilot).writing)
        await until(pilot, lambda: forecast(pilot) == "")
        paste(pilot, "x" * 2100)
        await until(pilot, lambda: forecast(pilot).startswith("2,100 tokens · 2,"))
        assert forecast(pilot).endswith(" of 2,048, too long")
        assert transcript(pilot).writing
        await pilot.press("escape")


async def test_what_is_typed_code_point_by_code_point_is_whole(make_app: MakeApp) -> None:
    text = "👨‍👩‍👧‍👦 e\u0301 🇩🇪 نمی‌خواهم 日本"
    async with make_app(model="missing").run_test() as pilot:
        await type(pilot, text)
        assert prompt(pilot).text == text


async def test_keys_of_the_prompt_can_be_others(make_app: MakeApp, monkeypatch: Any) -> None:
    keys = {"prompt.complete": "ctrl+n", "prompt.close_list": "ctrl+r"}
    async with make_app(settings={"keys": keys}).run_test() as pilot:
        await loaded(pilot)
        await type(pilot, "/mo")
        await until(pilot, lambda: bool(choices(pilot)))
        await pilot.press("ctrl+r")
        assert choices(pilot) == []
        await pilot.press("ctrl+n")
        assert prompt(pilot).text == "/model "
