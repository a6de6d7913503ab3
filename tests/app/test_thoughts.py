"""Models that think aloud: what is folded, what unfolds, and what is left out of answers."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console
from textual.pilot import Pilot

from app.conversation import Answer, split_thought
from app.store.records import Message
from app.theme import GLASS, make_look
from app.widgets.thought import GrowingThought
from inference.events import Token
from inference.thinking import KNOWN_MARKS
from tests.app.scripted_engine import Script
from tests.app.test_chat import MakeApp, answered, loaded, notifications, say, state, transcript, until

THINK = KNOWN_MARKS[0]
PIECES = (
    "<think>",
    "\n",
    "The moon",
    " pulls\x1b",
    "[2J the sea.",
    "\n\n",
    "So **tides**.",
    "</think>",
    "\n\n",
    "Because.",
)


def shown(pilot: Pilot[None]) -> list[str]:
    return transcript(pilot).text.split("\n")


def line_of(pilot: Pilot[None], beginning: str) -> int:
    """The only line of the transcript that begins so."""
    (line,) = (index for index, text in enumerate(shown(pilot)) if text.lstrip().startswith(beginning))
    return line


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_thought_is_folded_when_the_answer_begins(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=PIECES, thinking=THINK))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        assert "ctrl+t" in transcript(pilot).text
        await say(pilot, "why")
        await answered(pilot)
        line = line_of(pilot, "▸ Thought for ")
        assert shown(pilot)[line].endswith(" 7 tokens")
        assert shown(pilot)[line + 1 : line + 3] == ["", "  Because."]
        assert "moon" not in transcript(pilot).text
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "moon" in transcript(pilot).text)
        line = line_of(pilot, "▾ Thought for ")
        assert shown(pilot)[line + 1 : line + 6] == [
            "    The moon pulls␛[2J the sea.", "", "    So **tides**.", "", "  Because."
        ]  # fmt: skip
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "moon" not in transcript(pilot).text)


async def test_answers_are_copied_without_the_thought_and_sent_with_it(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=PIECES, thinking=THINK))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "why")
        await answered(pilot)
        await say(pilot, "/copy")
        assert pilot.app.clipboard == "Because."
        await say(pilot, "more")
        await answered(pilot, 2)
        assert app.engines[0].prompts[1][1] == {"role": "assistant", "content": "".join(PIECES)}


async def test_a_click_unfolds_one_thought_and_the_key_all(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=PIECES, thinking=THINK))
    async with app.run_test(size=(120, 60)) as pilot:
        await loaded(pilot)
        for count in (1, 2):
            await say(pilot, "why")
            await answered(pilot, count)
        first = next(index for index, text in enumerate(shown(pilot)) if "▸ Thought" in text)
        await pilot.click(transcript(pilot), offset=(5, first))
        await until(pilot, lambda: transcript(pilot).text.count("moon") == 1)
        assert "▾" in shown(pilot)[first]
        await pilot.click(transcript(pilot), offset=(5, first + 1))
        await pilot.pause(0.1)
        assert transcript(pilot).text.count("moon") == 1
        await pilot.press("ctrl+t")
        await until(pilot, lambda: transcript(pilot).text.count("moon") == 2)
        await say(pilot, "why")
        await answered(pilot, 3)
        assert transcript(pilot).text.count("moon") == 3
        await pilot.click(transcript(pilot), offset=(5, first))
        await until(pilot, lambda: transcript(pilot).text.count("moon") == 2)
        assert "▸" in shown(pilot)[first]
        await pilot.resize_terminal(60, 30)
        await until(pilot, lambda: max(map(len, shown(pilot))) < 60 and transcript(pilot).text.count("moon") == 2)


async def test_a_thought_is_live_and_stopped_before_an_answer_it_says_so(make_app: MakeApp) -> None:
    app = make_app(
        Script(pieces=tuple(f"w{i} " for i in range(5000)), thinking=THINK, prompt_end="<think>\n", tokens_per_s=200)
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await say(pilot, "why")
        await until(pilot, lambda: "▸ Thinking… " in transcript(pilot).text)
        before = shown(pilot)[line_of(pilot, "▸ Thinking… ")]
        await until(pilot, lambda: shown(pilot)[line_of(pilot, "▸ Thinking… ")] != before)
        await until(pilot, lambda: re.search(r" w\d\d\d$", shown(pilot)[line_of(pilot, "▸ Thinking… ")]))
        assert "w1 " not in transcript(pilot).text
        await pilot.click(
            transcript(pilot), offset=(5, line_of(pilot, "▸ Thinking… ") - transcript(pilot).scroll_offset.y)
        )
        await until(pilot, lambda: "w1 w2 w3" in transcript(pilot).text)
        await pilot.press("escape")
        await answered(pilot)
        assert state(pilot) == "ready"
        assert shown(pilot)[line_of(pilot, "▾ Thought for ")].endswith(" tokens; no answer")
        await say(pilot, "/copy")
        assert "no answer to copy" in notifications(pilot)


async def test_without_marks_nothing_is_a_thought(make_app: MakeApp) -> None:
    async with make_app(Script(pieces=PIECES)).run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "why")
        await answered(pilot)
        assert "<think>" in transcript(pilot).text and "Thought" not in transcript(pilot).text
        await say(pilot, "/copy")
        assert pilot.app.clipboard == "".join(PIECES)


async def test_notices_of_a_load_are_shown_once(make_app: MakeApp) -> None:
    app = make_app(Script(notices=("the template refuses a system message: it is merged",)))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await until(pilot, lambda: "it is merged" in transcript(pilot).text)
        assert transcript(pilot).text.count("it is merged") == 1


def test_control_characters_are_caught_whatever_the_cuts() -> None:
    text = "<think>a\r\nb\x1b[31m\r</think>\r\n c\x1b]0;x\x07\r"
    for size in range(1, len(text)):
        answer = Answer(1, 1, "Model", {})
        answer.begin(THINK, thinking=False)
        parts = ["", ""]
        for start in range(0, len(text), size):
            answer.take(Token(1, text[start : start + size], 0.0))
            parts = [before + new for before, new in zip(parts, answer.release(), strict=True)]
        answer.end()
        parts = [before + new for before, new in zip(parts, answer.release(), strict=True)]
        assert parts == ["a\nb␛[31m␍", "c␛]0;x␇␍"], size
        raw = answer.unsaved()
        assert (raw, answer.unsaved()) == (text, "")
        kept = Message(2, 1, "assistant", raw, 0.0, settings=json.loads(json.dumps(answer.settings)))
        assert split_thought(kept)[1] == "c\x1b]0;x\x07\r"


def test_a_growing_thought_is_wrapped_as_if_it_had_been_whole() -> None:
    look, console = make_look({"foreground": GLASS.foreground or ""}), Console()
    text = "Some words  with  gaps, a\ttab, 東京東京東京, " + "long" * 30 + " end \n\n  indented\n" + "more words " * 40
    whole, growing = GrowingThought(), GrowingThought()
    whole.unfolded = growing.unfolded = True
    whole.feed(text, 1, 0.0)
    for index, character in enumerate(text):
        growing.feed(character, 1, 0.0)
        if index % 3 == 0:
            growing.strips(30, look, console)
    lines = [strip.text.rstrip() for strip in growing.strips(30, look, console)]
    assert lines == [strip.text.rstrip() for strip in whole.strips(30, look, console)]
    assert "".join("".join(lines[1:]).split()) == "".join(text.split())
    assert all(strip.cell_length == 30 for strip in growing.strips(30, look, console))


def test_a_line_that_stands_for_a_thought_fits_any_width() -> None:
    look, console = make_look({}), Console()
    thought = GrowingThought()
    thought.feed("東京 is the capital. " * 30, 12345, 61.0)
    for width in range(10, 140):
        (strip,) = thought.strips(width, look, console)
        assert strip.cell_length == width
        assert strip.text.strip().startswith("▸ Think")
    assert strip.text.rstrip().endswith("the capital.")
