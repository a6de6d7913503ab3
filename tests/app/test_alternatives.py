"""Several replies at once: tabs while they are written, one kept, the others as branches."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from app.screens.alternatives import AlternativesScreen
from app.screens.chat import ChatScreen
from app.store import schema
from app.store.records import Message
from app.store.store import Store
from app.widgets.candidate_tabs import CandidateTabs, tab_at
from app.widgets.transcript import Transcript
from inference.errors import ContextFull
from inference.sampling import Sampling
from tests.app.pictures import LARGE, Pictures
from tests.app.scripted_engine import Script
from tests.app.test_branches import shown, tell, tree
from tests.app.test_chat import MakeApp, answered, chat, loaded, notifications, state, until

TEXTS = (("One ", "is ", "short."), ("Two ", "is ", "a ", "bit ", "longer."), ("Three ", "[b]is[/b] ", "\x1b[31mred."))
SLOW = tuple(tuple(f"{name}{index} " for index in range(10_000)) for name in "abc")


def screen(pilot: Pilot[None]) -> AlternativesScreen:
    found = pilot.app.screen
    assert isinstance(found, AlternativesScreen)
    return found


def at_tabs(pilot: Pilot[None]) -> bool:
    return isinstance(pilot.app.screen, AlternativesScreen)


def labels(pilot: Pilot[None]) -> list[str]:
    return list(screen(pilot).query_one(CandidateTabs).labels)


def figures(pilot: Pilot[None]) -> str:
    return str(screen(pilot).query_one("#figures", Static).content)


def text(pilot: Pilot[None]) -> str:
    """The reply that is looked at."""
    return next((view.text for view in screen(pilot).query(Transcript) if view.display), "")


def replies(pilot: Pilot[None]) -> list[Message]:
    """All replies to the last question of the branch shown, also those of other branches."""
    nodes = [node.id for node in tree(pilot).path() if node.role == "user"]
    found = [tree(pilot).loaded(id) for id in tree(pilot).children(nodes[-1])]
    return [message for message in found if message is not None]


async def ask(pilot: Pilot[None], command: str = "/alternatives 3") -> None:
    await loaded(pilot)
    await tell(pilot, "why?")
    await answered(pilot)
    await tell(pilot, command)
    await until(pilot, lambda: at_tabs(pilot))


async def closed(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
    await until(pilot, lambda: not chat(pilot).conversation.busy and not chat(pilot).conversation.view.busy)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_one_is_kept_and_the_others_are_branches(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Script(pieces=("Old.",), many=TEXTS))
    async with app.run_test(size=size) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "One is short." in text(pilot))
        await until(pilot, lambda: "finished · 3 tokens" in figures(pilot) and "all: 11 tokens" in figures(pilot))
        assert [label.partition(" ·")[0] for label in labels(pilot)] == ["1 ✓ 3", "2 ✓ 5", "3 ✓ 3"]
        await pilot.press("right", "right")
        await until(pilot, lambda: "␛[31mred." in text(pilot) and "[b]is[/b]" in text(pilot))
        await pilot.press("right", "left", "left", "enter")
        await closed(pilot)
        await until(pilot, lambda: "Two is a bit longer." in shown(pilot) and "Old." not in shown(pilot))
        assert "Scripted-135M < 3/4 >" in shown(pilot) and "2 other replies beside it" in shown(pilot)
        assert [each.text for each in replies(pilot)] == ["Old.", *("".join(each) for each in TEXTS)]
        assert all(each.finish_reason == "stop" for each in replies(pilot))
        await tell(pilot, "go on")
        await until(pilot, lambda: [turn["content"] for turn in app.engines[0].prompts[-1]][1:] == [
            "Two is a bit longer.", "go on"
        ])  # fmt: skip
        await answered(pilot, 2)
        assert state(pilot) == "ready"


async def test_each_has_a_seed_of_its_own(make_app: MakeApp) -> None:
    app = make_app(Script(many=TEXTS), settings={"seed": 7}, sampling=Sampling(seed=7))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, "/alternatives")
        assert [each.seed for each in app.engines[0].samplings] == [7, 7, 8, 9]
        assert app.engines[0].prompts[1:] == [app.engines[0].prompts[0]] * 3
        await pilot.press("enter")
        await closed(pilot)
        assert [each.settings["seed"] for each in replies(pilot)] == [7, 7, 8, 9]


async def test_escape_stops_all_and_keeps_their_texts(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=200))
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "a9 " in text(pilot))
        await pilot.press("right")
        await until(pilot, lambda: "b9 " in text(pilot) and "writing" in figures(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "stopped" in figures(pilot))
        assert at_tabs(pilot) and [label[2] for label in labels(pilot)] == ["■"] * 3
        before = [each.text for each in replies(pilot)]
        await pilot.press("escape")
        await closed(pilot)
        # None was chosen: what was there is shown, and what was written are branches beside it.
        await until(pilot, lambda: "Old." in shown(pilot) and "Scripted-135M < 1/4 >" in shown(pilot))
        assert [each.text for each in replies(pilot)] == before
        assert [each.finish_reason for each in replies(pilot)] == ["stop", *["cancelled"] * 3]
        await pilot.press("alt+right")
        await until(pilot, lambda: "Scripted-135M < 2/4 >" in shown(pilot) and "a9 " in shown(pilot))


async def test_one_that_is_kept_is_written_to_its_end_while_the_others_stop(make_app: MakeApp) -> None:
    many = tuple(pieces[:250] for pieces in SLOW)
    app = make_app(Script(pieces=("Old.",), many=many, tokens_per_s=100))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "a0 " in text(pilot))
        view, box = screen(pilot), screen(pilot).query("Vertical").first()
        # A press would wait until nothing is written any more.
        view.action_step(-1)
        view.action_keep()
        await until(pilot, lambda: [label[2] for label in labels(pilot)] == ["■", "■", "●"])
        assert "reply 3 is kept once it has ended" in str(box.border_subtitle)
        await closed(pilot)
        await until(pilot, lambda: "c249" in shown(pilot) and "< 4/4 >" in shown(pilot))
        assert [each.finish_reason for each in replies(pilot)] == ["stop", "cancelled", "cancelled", "stop"]
        assert all(len(each.text) < 600 for each in replies(pilot)[1:3])


async def test_escape_stops_the_one_that_is_kept_too(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=200))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, "/alternatives 2")
        await until(pilot, lambda: "a5 " in text(pilot))
        await pilot.press("enter", "escape")
        await closed(pilot)
        await until(pilot, lambda: "a5 " in shown(pilot) and "stopped · alt+g goes on" in shown(pilot))
        assert "< 2/3 >" in shown(pilot)


async def test_keys_that_come_too_late_change_nothing(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=TEXTS))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "finished" in figures(pilot))
        view = screen(pilot)
        for _ in range(3):
            view.action_keep()
            view.action_step(1)
            view.action_leave()
        await closed(pilot)
        await until(pilot, lambda: "One is short." in shown(pilot) and "Old." not in shown(pilot))
        assert shown(pilot).count("▌ why?") == 1 and "< 2/4 >" in shown(pilot)


async def test_stopped_before_the_first_token_nothing_has_changed(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=1))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await until(pilot, lambda: "Old." in shown(pilot))
        await answered(pilot)
        chat(pilot).alternatives.run("2")
        chat(pilot).action_stop()  # before the engine has heard of it
        await closed(pilot)
        await until(pilot, lambda: "Old." in shown(pilot))
        assert [each.text for each in replies(pilot)] == ["Old."]
        assert state(pilot) == "ready"


async def test_an_error_in_the_middle_keeps_what_there_is(make_app: MakeApp) -> None:
    script = Script(pieces=("Old.",), many=SLOW, error=ContextFull("they do not fit"), error_after=4)
    app = make_app(script)
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "broken off · 4 tokens" in figures(pilot))
        assert "they do not fit" in notifications(pilot)
        await pilot.press("enter")
        await closed(pilot)
        await until(pilot, lambda: "a3" in shown(pilot) and "✗ they do not fit" in shown(pilot))
        assert [each.finish_reason for each in replies(pilot)] == ["stop", *["error"] * 3]


async def test_a_prompt_that_does_not_fit_leaves_all_as_it_was(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        app.engines[0].script = Script(many=SLOW, error=ContextFull("the prompt does not fit"))
        await tell(pilot, "/alternatives 2")
        await until(pilot, lambda: "✗ the prompt does not fit" in shown(pilot))
        await closed(pilot)
        assert [each.text for each in replies(pilot)] == ["Old."] and "Old." in shown(pilot)


async def test_a_full_context_is_told(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=TEXTS, reason="context"))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, "/alternatives 2")
        await until(pilot, lambda: "cut: the context is full" in figures(pilot))
        await pilot.press("enter")
        await closed(pilot)
        await until(pilot, lambda: "/drop" in shown(pilot))


def test_a_tab_is_found_by_where_it_stands() -> None:
    found = [tab_at(("1 a", "2 東"), cell) for cell in range(14)]
    assert found == [0] * 5 + [None] + [1] * 6 + [None] * 2


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/alternatives 1", "from 2 to 8, not 1"),
        ("/alternatives 9", "from 2 to 8, not 9"),
        ("/alternatives two", "from 2 to 8, not two"),
        ("/alternatives", "no question to answer yet"),
    ],
)
async def test_what_cannot_be_is_refused(make_app: MakeApp, command: str, why: str) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await tell(pilot, command)
        await until(pilot, lambda: why in notifications(pilot))
        assert not at_tabs(pilot)


async def test_at_temperature_0_it_says_that_all_would_be_the_same(make_app: MakeApp) -> None:
    async with make_app(settings={"temperature": 0.0}).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        await tell(pilot, "/alternatives 2")
        await until(pilot, lambda: "all replies would be the same" in notifications(pilot))
        assert not at_tabs(pilot)


async def test_a_tab_can_be_clicked(make_app: MakeApp) -> None:
    async with make_app(Script(many=TEXTS)).run_test(size=(80, 24)) as pilot:
        await ask(pilot, "/alternatives 8")
        await until(pilot, lambda: [label[2] for label in labels(pilot)] == ["✓"] * 8)
        assert sum(len(label) + 3 for label in labels(pilot)) < 80
        await pilot.click(CandidateTabs, offset=(10, 0))
        await until(pilot, lambda: "Two is a bit longer." in text(pilot))
        await pilot.press("enter")
        await closed(pilot)


async def test_nothing_else_is_begun_meanwhile(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=200))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "a2 " in text(pilot))
        chat(pilot).history.new()
        chat(pilot).messages.retry()
        chat(pilot).alternatives.run("2")
        await until(pilot, lambda: notifications(pilot).count("A reply is being written") == 3)
        await pilot.press("escape", "escape")
        await closed(pilot)


def on_disk(path: Path) -> list[str]:
    """The newest text of each reply, as a program that is started now would find it."""
    connection = schema.connect(path)
    try:
        rows = connection.execute("SELECT body FROM message WHERE role = 'assistant' ORDER BY id")
        return [schema.from_blob(body) for (body,) in rows]
    finally:
        connection.close()


async def test_all_are_on_the_disk_within_a_second(make_app: MakeApp, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=100), history=path)
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await until(pilot, lambda: "a20 " in text(pilot))
        await until(pilot, lambda: [f"{name}20 " in each for name, each in zip("abc", on_disk(path)[1:], strict=True)]
                    == [True] * 3, seconds=1)  # fmt: skip
        await pilot.press("escape")
    app.store.close()


async def test_what_is_written_is_there_after_leaving(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(Script(pieces=("Old.",), many=SLOW, tokens_per_s=200), history=tmp_path / "history.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot)
        await pilot.press("right")
        await until(pilot, lambda: "b9 " in text(pilot))
        kept = tree(pilot).id
    assert app.store.close() == ""
    store = Store(tmp_path / "history.db")
    opened = await store.open(kept)
    question = opened.path()[0].id
    found = await store.messages(opened, opened.children(question))
    store.close()
    assert [each.text.split()[:3] for each in found[1:]] == [[f"{name}{n}" for n in range(3)] for name in "abc"]
    assert all(each.finish_reason == "cancelled" for each in found[1:])


async def test_what_it_looks_like(
    make_app: MakeApp, pictures: Pictures, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.candidates._rate", lambda *_: 21.4)
    replies = (
        "The moon's pull is stronger on the near side than on the far side.",
        "Because there are **two** bulges:\n\n1. one below the moon\n2. one on the other side\n\n`two` of them a day.",
        "It is a matter of differences, not of strength alone.",
    )
    pieces = tuple(tuple(reply[start : start + 5] for start in range(0, len(reply), 5)) for reply in replies)
    async with make_app(Script(many=pieces)).run_test(size=LARGE) as pilot:
        await ask(pilot)
        await until(pilot, lambda: [label[2] for label in labels(pilot)] == ["✓"] * 3)
        await pilot.press("right")
        await until(pilot, lambda: "bulges" in text(pilot))
        await pictures.take(pilot, "alternatives")
