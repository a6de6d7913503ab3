"""LoRA adapters as a person meets them in the chat: the command, the panel and the picker."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.widgets import DirectoryTree, Input, Static

from app.panels.lora_cost import LoraCost, cost_text, fusions
from app.panels.lora_panel import AddRow, LoraPanel
from app.panels.lora_row import LoraRow, track, track_place, track_strength
from app.panels.memory_panel import MemoryPanel
from app.screens.adapter_picker import AdapterPicker
from app.theme import make_look
from app.widgets.load_bar import LoadBar
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.scripted_plan import lora_rows, plan_rows
from tests.app.test_chat import SIZES, MakeApp, answered, chat, loaded, notifications, prompt, say, transcript, until

LOOK = make_look({})
ADAPTERS = Path(__file__).parents[1] / "data" / "tiny" / "qwen3" / "lora"


async def command(pilot: Pilot[None], text: str) -> None:
    """Send a text at once."""
    prompt(pilot).text = text
    prompt(pilot).focus()
    await pilot.press("enter")


def rows(pilot: Pilot[None]) -> list[LoraRow]:
    return list(chat(pilot).query(LoraRow))


def shown(pilot: Pilot[None]) -> list[tuple[str, float, bool]]:
    return [(row.adapter.name, row.strength, row.pending) for row in rows(pilot)]


def said(pilot: Pilot[None]) -> str:
    return " ".join(transcript(pilot).text.split())


def strengths(app: MadeApp, engine: int = 0) -> dict[str, float]:
    """What the engine uses."""
    return {each.adapter.name: each.strength for each in app.engines[engine].adapters.applied}


@pytest.mark.parametrize("size", SIZES)
async def test_an_adapter_is_loaded_changed_and_dropped_by_command(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await command(pilot, "/lora my/pirate=0.5")
        await until(pilot, lambda: "LoRA: pirate +0.50." in said(pilot))
        await command(pilot, "/lora sage")
        await until(pilot, lambda: "LoRA: pirate +0.50, sage +1.00." in said(pilot))
        await command(pilot, "/lora pirate 0.3")
        await until(pilot, lambda: "LoRA: pirate +0.30, sage +1.00." in said(pilot))
        await say(pilot, "hello")
        await answered(pilot)
        assert "reused · pirate +0.30, sage +1.00" in said(pilot)
        await command(pilot, "/lora drop 1")
        await until(pilot, lambda: "LoRA: sage +1.00. What was said is read anew" in said(pilot))
        assert strengths(app) == {"sage": 1.0}
        await command(pilot, "/lora drop all")
        await until(pilot, lambda: "LoRA: no adapter is in use." in said(pilot))
        assert strengths(app) == {} and rows(pilot) == []


async def test_what_fails_leaves_everything_as_it_was(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await command(pilot, "/lora good=0.5")
        await until(pilot, lambda: "LoRA: good" in said(pilot))
        for name, message in (
            ("bad", "tensor q.lora_A is for a matrix of 8 x 9"),
            ("missing", "no such file or folder"),
        ):
            await command(pilot, f"/lora {name}")
            await until(pilot, lambda message=message: message in said(pilot))
        assert strengths(app) == {"good": 0.5} and shown(pilot) == [("good", 0.5, False)]
        await command(pilot, "/lora good nan")
        await until(pilot, lambda: "expected a number" in notifications(pilot))
        await say(pilot, "hello")
        await answered(pilot)


async def test_the_chat_starts_with_adapters_and_carries_them_to_the_next_model(make_app: MakeApp) -> None:
    app = make_app(Script(), Script(model="Second"), loras=(("pirate", 0.5), ("sage", 1.0)))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await until(pilot, lambda: "LoRA: pirate +0.50, sage +1.00" in said(pilot))
        await command(pilot, "/lora drop sage")
        await until(pilot, lambda: strengths(app) == {"pirate": 0.5})
        await command(pilot, "/model second")
        await loaded(pilot, "Second")
        await until(pilot, lambda: shown(pilot) == [("pirate", 0.5, False)])
        assert strengths(app, 1) == {"pirate": 0.5} and app.engines[1].asked_loras == [(("/lora/pirate", 0.5),)]


async def test_without_a_model_there_is_nothing_to_adapt(make_app: MakeApp) -> None:
    async with make_app(model="missing").run_test() as pilot:
        await until(pilot, lambda: "neither a file nor a model" in said(pilot))
        await command(pilot, "/lora pirate")
        await until(pilot, lambda: "an adapter needs the model that it was made for" in said(pilot))


async def test_a_change_during_a_reply_comes_after_it_and_outlives_its_end(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=tuple(f"w{i} " for i in range(5000)), tokens_per_s=100))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await command(pilot, "/lora pirate")
        await until(pilot, lambda: strengths(app) == {"pirate": 1.0})
        await say(pilot, "go")
        await until(pilot, lambda: "w5" in transcript(pilot).text)
        await command(pilot, "/lora")
        await pilot.press("left", "left")
        await until(pilot, lambda: "change with the next one" in notifications(pilot))
        assert shown(pilot) == [("pirate", 0.8, True)] and strengths(app) == {"pirate": 1.0}
        assert "+0.80…" in str(rows(pilot)[0].render())
        await pilot.press("escape")
        await until(pilot, lambda: shown(pilot) == [("pirate", 0.8, False)])
        assert strengths(app) == {"pirate": 0.8}
        assert "reused · pirate +1.00" in said(pilot), "the reply says what it was written with"


async def test_a_fetch_shows_its_progress_and_stops_on_escape(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await command(pilot, "/lora slow/adapter")
        bar = chat(pilot).query_one(LoadBar)
        await until(pilot, lambda: bar.progress is not None and bar.progress.stage == "fetching slow/adapter")
        await pilot.press("escape")
        await until(pilot, lambda: "was cancelled" in said(pilot) and bar.progress is None)
        assert strengths(app) == {}


async def test_what_is_moved_while_an_older_strength_is_heard_of_is_not_lost(make_app: MakeApp) -> None:
    app = make_app(loras=(("pirate", 0.5),))
    async with app.run_test() as pilot:
        await until(pilot, lambda: len(rows(pilot)) == 1)
        await pilot.press("f6")
        panel, row = chat(pilot).query_one(LoraPanel), rows(pilot)[0]
        row.action_step(0.3)
        # Before the panel has the row's message.
        panel.show_adapters(app.engines[0].adapters.applied, LoraCost())
        await until(pilot, lambda: shown(pilot) == [("pirate", 0.8, False)])
        assert strengths(app) == {"pirate": 0.8}


@pytest.mark.parametrize("size", SIZES)
async def test_sliders_move_by_keys_digits_and_mouse(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(loras=(("pirate", 0.5), ("sage", 1.0)))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: len(rows(pilot)) == 2)
        await pilot.press("f6")
        assert pilot.app.focused is rows(pilot)[0]
        await pilot.press("right", "right", "shift+left")
        assert shown(pilot)[0] == ("pirate", 0.69, True)
        await until(pilot, lambda: shown(pilot)[0] == ("pirate", 0.69, False))
        await pilot.press("space")
        await until(pilot, lambda: strengths(app) == {"pirate": 0, "sage": 1})
        await pilot.press("space", "down", *"-0.x55", "backspace", "enter")
        await until(pilot, lambda: strengths(app) == {"pirate": 0.69, "sage": -0.5})
        await pilot.press("7", "escape", *"1.85", "enter", "right", "right")
        await until(pilot, lambda: strengths(app)["sage"] == 2.0)
        row = rows(pilot)[1]
        await pilot.click(row, offset=Offset(row._track.start + track_place(0.2, len(row._track)), 0))
        await until(pilot, lambda: strengths(app)["sage"] == 0.2)
        await pilot.press("delete")
        await until(pilot, lambda: strengths(app) == {"pirate": 0.69} and len(rows(pilot)) == 1)
        await pilot.press("f6")
        assert not chat(pilot).query_one(LoraPanel).display and pilot.app.focused is prompt(pilot)


async def test_what_moves_fast_settles_before_the_engine_hears_of_it(make_app: MakeApp) -> None:
    app = make_app(loras=(("pirate", 0.0),))
    async with app.run_test() as pilot:
        await until(pilot, lambda: len(rows(pilot)) == 1)
        await pilot.press("f6", *["right"] * 12)
        await until(pilot, lambda: strengths(app) == {"pirate": 1.2})
        asked = [loras[0][1] for loras in app.engines[0].asked_loras]
        assert asked[-1] == 1.2 and len(asked) < 6, asked


async def test_the_panel_shows_the_cost_that_was_measured(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("word ",) * 20))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await command(pilot, "/lora pirate")
        await until(pilot, lambda: len(rows(pilot)) == 1)
        await command(pilot, "/lora")
        panel, memory = chat(pilot).query_one(LoraPanel), chat(pilot).query_one(MemoryPanel)
        cost = panel.query_one("#lora-cost", Static)
        await until(pilot, lambda: "no reply yet with them · no reply yet without" in str(cost.render()))
        await pilot.press("f3")
        await until(pilot, lambda: "adapters f32" in str(memory.query_one("#memory-body", Static).render()))
        for count, text in enumerate(("/lora drop 1", "/lora pirate=2"), 1):
            prompt(pilot).focus()
            await say(pilot, "hello")
            await answered(pilot, count)
            await command(pilot, text)
            await until(pilot, lambda count=count: len(rows(pilot)) == count - 1)
        await until(pilot, lambda: "of it" in str(cost.render()))
        assert str(cost.render()).count("tok/s") == 2


async def test_the_picker_shows_adapters_only_and_takes_paths(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    for name in ("one", "deep/two"):
        shutil.copytree(ADAPTERS / "adapter1", tmp_path / name)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    mark = b"general.type\x08\0\0\0\x07\0\0\0\0\0\0\0adapter"
    (tmp_path / "three.gguf").write_bytes(b"GGUF" + mark)
    (tmp_path / "notes.txt").write_text("no adapter")
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await command(pilot, "/lora")
        assert isinstance(pilot.app.focused, AddRow)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, AdapterPicker))
        tree = pilot.app.screen.query_one(DirectoryTree)
        await until(pilot, lambda: len(tree.root.children) == 3)
        assert [str(node.label) for node in tree.root.children] == ["deep", "one", "three.gguf"]
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: [row.path for row in rows(pilot)] == [str(tmp_path / "one")])

        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, AdapterPicker))
        box = pilot.app.screen.query_one(Input)
        box.focus()
        box.value = str(tmp_path / "deep")
        await pilot.press("enter")
        tree = pilot.app.screen.query_one(DirectoryTree)
        await until(pilot, lambda: [str(node.label) for node in tree.root.children] == ["folder", "two"])
        await pilot.press("backspace")
        await until(pilot, lambda: len(tree.root.children) == 3)
        box.focus()
        box.value = "org/repo=0.25"
        await pilot.press("enter")
        await until(pilot, lambda: strengths(app) == {"one": 1.0, "repo": 0.25})


def test_a_slider_is_a_line_from_minus_one_to_two() -> None:
    assert track(0.5, 16, LOOK).plain == "─────┼━━●───────"
    assert track(-1, 16, LOOK).plain == "●━━━━┼──────────"
    assert track(0, 16, LOOK).plain == "─────●──────────"
    assert track(9, 16, LOOK).plain.endswith("●")
    for width in (16, 31):
        places = range(width)
        assert [track_place(track_strength(place, width), width) for place in places] == list(places)


def test_fusions_are_told_once_for_all_layers() -> None:
    adapted, refused = plan_rows(3, "decode"), "merge_qkv: not applied, an adapter is on q alone"
    rows = [
        *lora_rows(3),
        *(
            replace(row, notes=("lora_into_matmul: q.lora", refused))
            if row.name == "norm+qkv" and row.layer != 1
            else row
            for row in adapted
        ),
    ]
    assert fusions(rows) == [("norm+qkv", ("lora_into_matmul", refused), [0, 2])]
    text = cost_text(LoraCost(40.0, 50.0, tuple(rows)), LOOK).plain
    assert "40.0 tok/s with them · 50.0 tok/s without · 0.80 of it" in text
    assert "24 dispatches a token · 3 for adapters alone" in text and "layers 0, 2" in text
    assert cost_text(LoraCost(40.0, 50.0, tuple(adapted)), LOOK).plain == ""
