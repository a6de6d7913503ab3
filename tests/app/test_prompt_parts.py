"""The parts of the prompt without a screen: what was sent, long pastes, the editor, the forecast."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from app.external_editor import EditorFailed, edit_text
from app.prompt_forecast import forecast
from app.prompt_history import PromptHistory
from app.prompt_pastes import Pastes
from app.settings import read_sources
from app.theme import make_look
from app.token_count import CountTokens, TokenCounter, TokensCounted
from inference.errors import BadTemplate
from tests.app.scripted_engine import ScriptedEngine


def test_what_was_sent_comes_back_and_the_draft_is_kept() -> None:
    sent = PromptHistory()
    assert sent.older("draft") is None
    for text in ("one", "two", "two"):
        sent.add(text)
    assert sent.older("draft") == "two"
    assert sent.older("two, changed") == "one"
    assert sent.older("one") is None
    assert sent.newer("one") == "two, changed"
    assert sent.newer("two, changed") == "draft"
    assert sent.newer("draft") is None
    sent.add("three")
    assert [sent.older(""), sent.older("three"), sent.older("two")] == ["three", "two", "one"]


def test_other_texts_can_take_the_place_of_what_was_sent() -> None:
    sent = PromptHistory()
    sent.add("old")
    assert sent.older("draft") == "old"
    sent.replace(("a", "b"))
    assert [sent.older(""), sent.older("b"), sent.older("a")] == ["b", "a", None]


def test_long_pastes_get_labels_that_stand_for_them() -> None:
    pastes, long, other, wide = Pastes(), "x\n" * 12_344 + "x", "y\n" * 12_344 + "y", "z" * 10_000
    assert pastes.fold("short\ntext") == "short\ntext"
    label, second, third = pastes.fold(long), pastes.fold(other), pastes.fold(wide)
    assert (label, second) == ("[pasted 12,345 lines]", "[pasted 12,345 lines #2]")
    assert third == "[pasted 10,000 characters]"
    assert pastes.fold(long) == label
    assert (
        pastes.expand(f"a {label} b {second}{third} [pasted 9 lines]") == f"a {long} b {other}{wide} [pasted 9 lines]"
    )
    assert pastes.labels(f"a {label} [pasted 9 lines]") == [(2, 2 + len(label))]
    pastes.clear()
    assert pastes.expand(label) == label


def script(folder: Path, body: str) -> str:
    (folder / "editor.py").write_text(f"import sys, pathlib\npath = pathlib.Path(sys.argv[-1])\n{body}\n")
    return f"{sys.executable} '{folder / 'editor.py'}' --flag"


def test_the_editor_gets_the_text_and_its_result_comes_back(tmp_path: Path) -> None:
    command = script(tmp_path, "assert sys.argv[1] == '--flag'\npath.write_text(path.read_text().upper() + '\\n')")
    assert edit_text("two\nlines ä", command) == "TWO\nLINES Ä"


def test_an_interrupt_is_for_the_editor(tmp_path: Path) -> None:
    body = (
        "import os, signal\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "path.write_text(signal.getsignal(signal.SIGINT).__name__)"
    )
    assert edit_text("", script(tmp_path, body)) == "default_int_handler"


@pytest.mark.parametrize(
    ("body", "said"), [("sys.exit(3)", "ended with code 3"), ("path.write_bytes(b'\\xff')", "not UTF-8")]
)
def test_an_editor_that_fails_is_told(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(EditorFailed, match=said):
        edit_text("text", script(tmp_path, body))


@pytest.mark.parametrize("command", ["/no/such/editor", "'unclosed"])
def test_an_editor_that_cannot_be_run_is_told(command: str) -> None:
    with pytest.raises(EditorFailed, match="set VISUAL or EDITOR to another"):
        edit_text("text", command)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, "vi"), ({"EDITOR": "nano"}, "nano"), ({"EDITOR": "nano", "VISUAL": "code -w"}, "code -w")],
)
def test_the_editor_is_that_of_the_environment(tmp_path: Path, environ: dict[str, str], expected: str) -> None:
    assert read_sources(tmp_path / "settings.toml", environ, {}).editor == expected


@pytest.mark.parametrize(
    ("counted", "context", "said"),
    [
        (TokensCounted(1, 1, (), 16), 8192, "1 token · 16 of 8,192"),
        (TokensCounted(1, 935, (812,), 2001), 8192, "notes.txt 812 · 935 tokens · 2,001 of 8,192"),
        (TokensCounted(1, 9, (), 7000), 8192, "9 tokens · 7,000 of 8,192, nearly full"),
        (TokensCounted(1, 9, (), 8192), 8192, "9 tokens · 8,192 of 8,192, too long"),
        (TokensCounted(1, 9, (), None), 8192, "9 tokens"),
    ],
)
def test_the_forecast_says_what_is_left(counted: TokensCounted, context: int, said: str) -> None:
    assert forecast(counted, ("notes.txt",), context, make_look({})).plain == said


class SlowEngine(ScriptedEngine):
    """Counts only when it is told to; has no place for a second message of the user."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go = threading.Event()
        self.asked: list[str] = []

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.asked.append(messages[-1]["content"])
        assert self.go.wait(5)
        if len(messages) > 1 and messages[-2]["role"] == "user":
            raise BadTemplate("roles must alternate")
        return super().encode_chat(messages)


def test_only_what_was_asked_last_is_counted() -> None:
    engine, answers, answered = SlowEngine(), [], threading.Semaphore(0)
    counter = TokenCounter(lambda answer: (answers.append(answer), answered.release()))
    counter.ask(CountTokens(0, "no model", (), ()))
    counter.use(engine)
    for number in range(1, 50):
        counter.ask(CountTokens(number, f"text {number}", ("a file",), ()))
    engine.go.set()
    while not answers or answers[-1].number < 49:
        assert answered.acquire(timeout=5)
    assert len(engine.asked) <= 3
    text = "text 49"
    assert answers[-1] == TokensCounted(49, len(text), (6,), 1 + len(f"user: {text}"))
    counter.ask(CountTokens(50, "x", (), ({"role": "user", "content": "y"},)))
    assert answered.acquire(timeout=5)
    assert answers[-1] == TokensCounted(50, 1, (), None)
    counter.close()
