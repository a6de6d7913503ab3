"""Messages longer than anybody scrolls at once: only their end is laid out, the rest as one goes up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.app.scripted_engine import Script
from tests.app.test_chat import MakeApp, chat, loaded, transcript, until
from tests.app.test_history import keep

WORDS = [f"w{number}" for number in range(8_000)]
PARAGRAPHS = "\n\n".join(" ".join(WORDS[start : start + 50]) for start in range(0, len(WORDS), 50))
# The last of these is cut in pieces, each of which begins on the line on which the one before ends.
TEXTS = {"paragraphs": PARAGRAPHS, "one line": PARAGRAPHS + "\n\n" + " ".join(f"v{number}" for number in range(4000))}


def top(pilot: Pilot[None]) -> str:
    """The first word in sight."""
    shown = transcript(pilot)
    lines = (shown.render_line(y).text.split() for y in range(shown.size.height))
    return next(line[0] for line in lines if line)


async def still(pilot: Pilot[None]) -> None:
    await pilot.pause(0.05)
    await until(pilot, lambda: not chat(pilot).conversation.view.busy)


@asynccontextmanager
async def opened(make_app: MakeApp, folder: Path, text: str) -> AsyncIterator[Pilot[None]]:
    """The app with a conversation in which `text` was the reply."""
    id = keep(folder / "history.db", "the question", text)
    async with make_app(Script(), history=folder / "history.db").run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        chat(pilot).history.open(id)
        await until(pilot, lambda: text.split()[-1] in transcript(pilot).text)
        await still(pilot)
        yield pilot


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
async def test_all_of_it_is_there_as_one_scrolls_up(make_app: MakeApp, tmp_path: Path, text: str) -> None:
    async with opened(make_app, tmp_path, text) as pilot:
        shown = transcript(pilot)
        assert "the question" not in shown.text and "w0 " not in shown.text
        for _ in range(20):
            if "the question" in shown.text:
                break
            before = shown.line_count
            shown.scroll_to(y=5, animate=False)
            first = top(pilot)
            await until(pilot, lambda before=before: shown.line_count > before)
            await still(pilot)
            assert top(pilot) == first
        assert [word for word in shown.text.split() if word[0] in "wv" and word[1:].isdigit()] == text.split()


async def test_the_question_above_can_be_chosen_and_edited(make_app: MakeApp, tmp_path: Path) -> None:
    async with opened(make_app, tmp_path, PARAGRAPHS) as pilot:
        shown = transcript(pilot)
        await pilot.press("alt+up")
        await pilot.press("alt+up")
        await until(pilot, lambda: "┃ ▌ the question" in "\n".join(shown.render_line(y).text for y in range(22)))
        await pilot.press("alt+e", "!", "enter")
        await until(pilot, lambda: "Hello there!" in shown.text)
        await pilot.press("alt+left")
        await until(pilot, lambda: WORDS[-1] in shown.text and "< 1/2 >" in shown.text)


async def test_what_is_read_stays_in_sight_in_another_width(make_app: MakeApp, tmp_path: Path) -> None:
    async with opened(make_app, tmp_path, PARAGRAPHS) as pilot:
        shown = transcript(pilot)
        for _ in range(2):
            shown.scroll_to(y=100, animate=False)
            await still(pilot)
        read = int(top(pilot)[1:])
        for width in (120, 60, 80):
            await pilot.resize_terminal(width, 24)
            await pilot.pause(0.3)
            assert abs(int(top(pilot)[1:]) - read) <= 50
        assert read < 7_500
        await pilot.press("ctrl+end")
        await pilot.resize_terminal(120, 24)
        await until(pilot, lambda: shown.line_count < 600)
        assert WORDS[-1] in "\n".join(shown.render_line(y).text for y in range(22))


async def test_of_a_long_note_the_beginning_is_shown(make_app: MakeApp) -> None:
    async with make_app(Script()).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        begun = time.perf_counter()
        chat(pilot).note("System prompt: " + PARAGRAPHS * 20)
        assert time.perf_counter() - begun < 0.3
        assert "w100 " in transcript(pilot).text and "more characters are not shown" in transcript(pilot).text
