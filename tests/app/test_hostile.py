"""Text that would act on the terminal, from a model, in the history and in a file, and what the terminal gets of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from textual import events

from app.chat_app import ChatApp
from app.engine_thread import EngineThread
from app.panels.names import PANELS
from app.settings import Sources
from app.start import Start
from app.store.store import Store
from app.widgets.message_items import question_items
from tests.app.conftest import FIT, MadeApp, without_size
from tests.app.scripted_engine import Script, opener, resolve, resolve_adapter
from tests.app.test_chat import loaded, prompt, say, state, transcript, until
from tests.app.test_replies import last_reply

ROOT = Path(__file__).parents[2]
# What a terminal would obey, none of which the application itself ever sends.
ACTIVE = (
    "\x1b]52;c;SE9TVElMRQ==\x07", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b[5;41m", "\x1b[6n", "\x1b[3J",
    "\x1bP+q\x1b\\", "\x1bc", "\x9b5m", "\x90q\x9c", "\x0e", "\x08", "\x00", "\x7f", "\u202e", "\u2066", "\u200f",
)  # fmt: skip
MARKUP = "[bold red]m[/] [/nonsense] [link=http://x]l[/link] [@click=app.quit]q[/] \\[x] zero\u200bwidth\u200d"
HOSTILE = f"{''.join(ACTIVE)}\r{MARKUP}\r\nend"


def main(folder: Path) -> None:
    """The chat with everything hostile that can be, and all panels open."""
    store = Store(folder / "history.db")
    tree = store.new(HOSTILE)
    question = tree.add("user", HOSTILE, None)
    reply = tree.add("assistant", HOSTILE, question.id, HOSTILE, {"loras": HOSTILE})
    tree.finish(reply.id, "stop")
    # A token a character: every sequence is split.
    script = Script(pieces=(*HOSTILE, " ", "```", HOSTILE, "\n", *HOSTILE, "\n```\nTHE-END"), notices=(HOSTILE,))
    open_engine, _ = opener(script)
    given = {"theme": "glass", "open_panels": tuple(PANELS), "sidebar": True}
    ChatApp(
        EngineThread(resolve, open_engine, resolve_adapter),
        store,
        lambda device: [],
        lambda path, device: FIT,
        Sources(folder / "settings.toml", given),
        Start(f"model {HOSTILE}", resume=True, notices=(HOSTILE,)),
    ).run()
    store.close()


def test_it_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_bytes(HOSTILE.encode().replace(b"\0", b""))
    child = pexpect.spawn(
        sys.executable,
        ["-c", "import sys, pathlib; from tests.app import test_hostile as t; t.main(pathlib.Path(sys.argv[1]))", "."],
        cwd=str(tmp_path),
        env={**without_size(os.environ), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        dimensions=(50, 160),
        encoding="utf-8",
        timeout=30,
    )
    seen = []

    def expect(text: str) -> None:
        child.expect_exact(text)
        seen.append(child.before + text)

    expect("cpu f32")
    child.send("look @file.txt \r")
    expect("THE-END")
    expect("tok/s")
    child.send(f"\x1b[200~pasted {HOSTILE.replace(chr(27), '')} PASTED-END\x1b[201~")
    expect("PASTED-END")
    child.send("\x11")
    child.expect(pexpect.EOF)
    seen.append(child.before)
    child.close()
    written = "".join(seen)
    assert [sequence for sequence in ACTIVE if sequence in written] == []
    for shown in ("␛", "⟨U+202E⟩", "⟨9B⟩", "[bold red]m[/]", "[/nonsense]"):
        assert shown in written
    assert child.exitstatus == 0


@pytest.mark.alone
@pytest.mark.parametrize("text", ["x" * 1_000_000, "[" * 20_000], ids=["line", "nesting"])
async def test_a_line_of_a_megabyte_leaves_keys_in_time(make_app: Callable[..., MadeApp], text: str) -> None:
    app = make_app(Script(pieces=(text, "THE-END", *" more" * 2000), tokens_per_s=500))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: state(pilot) == "writing")
        waits = []
        for count in range(1, 31):
            began = time.perf_counter()
            app.post_message(events.Key("x", "x"))
            await until(pilot, lambda count=count: prompt(pilot).text == "x" * count)  # type: ignore[misc]
            waits.append(time.perf_counter() - began)
        assert sorted(waits)[-2] < 0.25
        await pilot.press("escape")
        await until(pilot, lambda: state(pilot) == "ready" and not transcript(pilot).writing, 30)
        assert last_reply(pilot).startswith(text)


def test_a_very_long_question_shows_its_beginning_and_says_so() -> None:
    question, rest = question_items("\x1b" * 1_000_000, (1, 1))
    assert question.text == "␛" * 20_000
    assert rest.text == "… 980,000 more characters are part of the message"
