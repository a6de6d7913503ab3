"""Conversations that are kept: saved while they grow, found in the sidebar, gone on with."""

from __future__ import annotations

import time
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input

from app.settings import load_settings
from app.store.records import Summary
from app.store.store import Store
from app.widgets.conversation_list import ConversationList
from app.widgets.history_sidebar import HistorySidebar
from inference.thinking import KNOWN_MARKS
from tests.app.scripted_engine import Script
from tests.app.test_branches import tell
from tests.app.test_chat import MakeApp, answered, chat, loaded, notifications, prompt, state, transcript, until


def sidebar(pilot: Pilot[None]) -> HistorySidebar:
    return chat(pilot).query_one(HistorySidebar)


def listed(pilot: Pilot[None]) -> list[str]:
    return [hit.conversation.title for hit in chat(pilot).query_one(ConversationList).hits]


def current(pilot: Pilot[None]) -> list[str]:
    rows = chat(pilot).query_one(ConversationList)
    prompts = [str(rows.get_option_at_index(index).prompt) for index in range(rows.option_count)]
    return [row.split("\n")[0].removeprefix("● ") for row in prompts if row.startswith("●")]


async def stored(path: Path) -> list[str]:
    """The texts of the newest conversation's branch, as another program finds them."""
    store = Store(path)
    try:
        (newest,) = await store.conversations(limit=1)
        tree = await store.open(newest.id)
        return [message.text for message in await store.messages(tree, [node.id for node in tree.path()])]
    finally:
        store.close()


def keep(path: Path, question: str, answer: str) -> int:
    """A history with one conversation, whose id is returned."""
    store = Store(path)
    tree = store.new()
    tree.finish(tree.add("assistant", answer, tree.add("user", question, None).id, "Other").id, "stop")
    assert store.close() == ""
    return tree.id


def fill(path: Path, *titles: str) -> None:
    """A history with conversations of these titles, the last one the newest."""
    store = Store(path)
    for title in titles:
        tree = store.new()
        question = tree.add("user", title, None)
        tree.finish(tree.add("assistant", f"All about {title}.", question.id, "Other").id, "stop")
    assert store.close() == ""


async def test_a_reply_is_kept_while_it_grows_and_when_the_program_ends(make_app: MakeApp, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    pieces = tuple(f"w{i} \x1b" for i in range(5000))
    async with make_app(Script(pieces=pieces, tokens_per_s=100), history=path).run_test() as pilot:
        await loaded(pilot)
        await tell(pilot, "go")
        await until(pilot, lambda: "w60" in transcript(pilot).text)
        begun = time.monotonic()
        question, reply = await stored(path)
        assert (question, reply[:10]) == ("go", "".join(pieces)[:10])
        assert int(reply.split()[-2].strip("\x1bw")) > 0 and time.monotonic() - begun < 1
        pilot.app.exit()
        await pilot.pause(0.2)
    pilot.app.store.close()  # type: ignore[attr-defined]
    question, kept = await stored(path)
    assert len(kept) >= len(reply) and "".join(pieces).startswith(kept)
    async with make_app(Script(pieces=("on",)), history=path, resume=True).run_test() as pilot:
        await until(pilot, lambda: "w60 ␛" in transcript(pilot).text)
        assert "stopped" in transcript(pilot).text
        await loaded(pilot)
        await tell(pilot, "more")
        await until(pilot, lambda: bool(pilot.app.engines[0].prompts))  # type: ignore[attr-defined]
        assert [turn["content"] for turn in pilot.app.engines[0].prompts[0]] == ["go", kept, "more"]  # type: ignore[attr-defined]
        await pilot.press("up", "up")
        await until(pilot, lambda: prompt(pilot).text == "go")


async def test_a_reply_that_was_cut_off_says_so_and_folds_its_thought(make_app: MakeApp, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    store = Store(path)
    tree = store.new()
    marks = KNOWN_MARKS[0]
    settings = {"thinking": {"opens": marks.opens, "closes": marks.closes, "skips": None, "opened": False}}
    reply = tree.add("assistant", "", tree.add("user", "why?", None).id, "Other", settings)
    tree.grow(reply.id, "<think>Hm.</think>Because **it** is")
    store.close()
    async with make_app(history=path, resume=True).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "cut off" in transcript(pilot).text)
        text = transcript(pilot).text
        assert "Because it is" in text and "▸ Thought" in text and "Hm." not in text
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "Hm." in transcript(pilot).text)
        await tell(pilot, "/copy")
        assert pilot.app.clipboard == "Because **it** is"


async def test_without_a_history_nothing_is_continued(make_app: MakeApp) -> None:
    async with make_app(resume=True).run_test() as pilot:
        await until(pilot, lambda: "There is no conversation to continue yet." in transcript(pilot).text)


async def test_the_sidebar_finds_opens_and_changes_conversations(make_app: MakeApp, tmp_path: Path) -> None:
    fill(tmp_path / "history.db", "Tides", "Moons", "東京")
    app = make_app(history=tmp_path / "history.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: listed(pilot) == ["東京", "Moons", "Tides"])
        await pilot.press("down", "enter")
        await until(pilot, lambda: "All about Moons." in transcript(pilot).text and current(pilot) == ["Moons"])
        assert pilot.app.focused is prompt(pilot) and sidebar(pilot).display
        await tell(pilot, "and now?")
        await answered(pilot)
        await until(pilot, lambda: listed(pilot) == ["Moons", "東京", "Tides"])
        await pilot.press("f8", "/", *"tide")
        await until(pilot, lambda: listed(pilot) == ["Tides"])
        await pilot.press("enter")
        await until(pilot, lambda: "All about Tides." in transcript(pilot).text)
        assert "Moons" not in transcript(pilot).text
        await pilot.press("f8")
        chat(pilot).query_one("#search", Input).value = ""
        await until(pilot, lambda: len(listed(pilot)) == 3 and current(pilot) == ["Tides"])
        await pilot.press("home", "r")
        await until(pilot, lambda: chat(pilot).query_one("#new-title", Input).value == "Moons")
        await pilot.press("space", "I", "I", "enter")
        await until(pilot, lambda: listed(pilot)[0] == "Moons II")
        await pilot.press("d")
        await until(pilot, lambda: listed(pilot) == ["東京", "Tides"])
        await pilot.press("end", "d")
        await until(pilot, lambda: listed(pilot) == ["東京"] and "A new conversation." in transcript(pilot).text)
        await pilot.press("u", "u", "u")
        await until(pilot, lambda: listed(pilot) == ["Moons II", "東京", "Tides"])
        assert "Nothing was deleted" in notifications(pilot)
        await pilot.press("n")
        assert pilot.app.focused is prompt(pilot)
        await pilot.press("f8", "f8")
        assert not sidebar(pilot).display and load_settings(app.settings_file)[0].sidebar is False


async def test_where_it_is_narrow_the_sidebar_lies_over_the_chat(make_app: MakeApp, tmp_path: Path) -> None:
    fill(tmp_path / "history.db", "Tides")
    app = make_app(history=tmp_path / "history.db", system="Be brief.")
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: listed(pilot) == ["Tides"])
        assert transcript(pilot).size.width > 70
        assert load_settings(app.settings_file)[0].sidebar
        await pilot.press("enter")
        await until(pilot, lambda: "All about Tides." in transcript(pilot).text)
        assert not sidebar(pilot).display and pilot.app.focused is prompt(pilot)
        await until(pilot, lambda: "a system prompt of its own" in " ".join(transcript(pilot).text.split()))
        await tell(pilot, "/new")
        await until(pilot, lambda: "A new conversation." in transcript(pilot).text)
        await tell(pilot, "/system")
        await until(pilot, lambda: "System prompt: Be brief." in transcript(pilot).text)


async def test_more_conversations_are_listed_as_one_goes_down(make_app: MakeApp, tmp_path: Path) -> None:
    fill(tmp_path / "history.db", *(f"number {i}" for i in range(120)))
    async with make_app(history=tmp_path / "history.db", settings={"sidebar": True}).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: len(listed(pilot)) == 50)
        await pilot.press("f8")
        for count in (100, 120):
            await pilot.press("end")
            await until(pilot, lambda count=count: len(listed(pilot)) == count)  # type: ignore[misc]
        assert listed(pilot) == [f"number {i}" for i in reversed(range(120))]


async def test_ten_thousand_messages_open_within_a_second(make_app: MakeApp, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    store = Store(path)
    tree, parent = store.new(), None
    for number in range(5000):
        parent = tree.add("user", f"question {number}", parent).id
        parent = tree.add("assistant", f"The answer {number}, in **Markdown**.\n\n" * 3, parent, "Other").id
        tree.finish(parent, "stop")
    store.close()
    app = make_app(history=path)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        begun = time.monotonic()
        chat(pilot).history.resume()
        view = transcript(pilot)
        await until(pilot, lambda: "answer 4999" in view.text)
        seconds = time.monotonic() - begun
        await until(pilot, lambda: not chat(pilot).conversation.view.busy)
        print(f"10,000 messages: {seconds:.2f} s to the first screen, {time.monotonic() - begun:.2f} s to all texts")
        assert seconds < 1 and "question 4970" not in view.text
        assert view.scroll_offset.y == view.max_scroll_y
        for _ in range(100):
            await pilot.press("pageup")
            if "question 4970\n" in view.text:
                break
        lines = view.text.split("\n")
        numbers = [int(line.split()[-1]) for line in lines if line.startswith("  ▌ question")]
        assert numbers == list(range(numbers[0], 5000)) and numbers[0] <= 4970
        top = lines[view.scroll_offset.y : view.scroll_offset.y + view.size.height]
        assert "4999" not in "".join(top)


async def test_export_and_import(make_app: MakeApp, tmp_path: Path) -> None:
    raw = "Tides \x1b]52;c;aGk=\x07 **and** [b]moons[/b]\u202e"
    app = make_app(Script(pieces=(raw,)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "/export")
        assert "nothing to export" in notifications(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        await tell(pilot, "/rename Sea: why?")
        for path in (tmp_path, tmp_path, tmp_path / "whole.json", tmp_path / "whole.json"):
            await tell(pilot, f"/export {path}")
        await until(pilot, lambda: "whole.json is there already" in " ".join(transcript(pilot).text.split()))
        assert sorted(path.name for path in tmp_path.glob("sea*")) == ["sea-why-2.md", "sea-why.md"]
        exported = (tmp_path / "sea-why.md").read_bytes()
        assert exported == f"# Sea: why?\n\n## User\n\nwhy?\n\n## Assistant (Scripted-135M)\n\n{raw}\n".encode()
        before = chat(pilot).conversation.tree.id
        await tell(pilot, f"/import {tmp_path / 'sea-why.md'}")
        await until(pilot, lambda: "cannot be imported" in transcript(pilot).text)
        assert chat(pilot).conversation.tree.id == before
        await tell(pilot, f"/import {tmp_path / 'whole.json'}")
        await until(pilot, lambda: chat(pilot).conversation.tree.id != before)
        await until(pilot, lambda: "Tides ␛]52;c;aGk=␇ and [b]moons[/b]⟨U+202E⟩" in transcript(pilot).text)
        assert [each.title for each in await app.store.conversations()] == ["Sea: why?"] * 2


async def test_a_conversation_stays_while_a_reply_is_written(make_app: MakeApp, tmp_path: Path) -> None:
    fill(tmp_path / "history.db", "Tides")
    app = make_app(Script(pieces=("word ",) * 3000, tokens_per_s=100), history=tmp_path / "history.db")
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "go")
        await until(pilot, lambda: "word" in transcript(pilot).text)
        await tell(pilot, "/new")
        await pilot.press("f8", "end", "enter")
        await until(pilot, lambda: "A reply is being written" in notifications(pilot))
        assert "word" in transcript(pilot).text and state(pilot) != "ready"
        await pilot.press("escape", "escape")
        await answered(pilot)
        await tell(pilot, "/new")
        await until(pilot, lambda: "word" not in transcript(pilot).text)
        tides = Summary(chat(pilot).history.current, "", 0, 0)
        assert tides.id not in {each.id for each in await app.store.conversations()}  # an empty one is not stored
