"""Messages chosen, edited, answered again and forked: every wording and every reply stays."""

from __future__ import annotations

from textual.pilot import Pilot

from app.engine_events import Generate, Load
from app.engine_thread import EngineThread
from app.store.tree import Tree
from app.widgets.message_bar import MessageBar
from inference import Engine
from inference.errors import ContextFull
from inference.events import Finished
from inference.sampling import Sampling
from tests.app.scripted_engine import Script
from tests.app.test_chat import MakeApp, answered, chat, loaded, notifications, prompt, state, transcript, until
from tests.app.test_lora_engine import QWEN3, wait


def tree(pilot: Pilot[None]) -> Tree:
    return chat(pilot).conversation.tree


def bar(pilot: Pilot[None]) -> str:
    widget = chat(pilot).query_one(MessageBar)
    return str(widget.render()) if widget.display else ""


async def tell(pilot: Pilot[None], text: str) -> None:
    """Send a message or a command, without the time that typing takes."""
    prompt(pilot).load_text(text)
    await pilot.press("enter")


def shown(pilot: Pilot[None]) -> str:
    return transcript(pilot).text


async def test_an_edited_question_is_another_branch(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Yes.",)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "first")
        await answered(pilot)
        await tell(pilot, "second")
        await answered(pilot, 2)
        await pilot.press("x", "alt+up", "alt+up", "alt+up", "alt+up")
        await until(pilot, lambda: "Question 1/4" in bar(pilot))
        await pilot.press("alt+e")
        assert prompt(pilot).text == "first" and "becomes a branch of its own" in bar(pilot)
        await pilot.press("!", "enter")
        await until(pilot, lambda: "▌ first!\n  < 2/2 >" in shown(pilot))
        await answered(pilot)
        assert "second" not in shown(pilot) and bar(pilot) == ""
        assert app.engines[0].prompts[-1] == [{"role": "user", "content": "first!"}]
        await pilot.press("alt+left")
        await until(pilot, lambda: "▌ first\n  < 1/2 >" in shown(pilot) and "▌ second" in shown(pilot))
        assert "first!" not in shown(pilot) and "branch 1/2" in bar(pilot)
        await pilot.press("alt+left")
        await until(pilot, lambda: "the first of 2 branches" in notifications(pilot))
        await tell(pilot, "third")
        await until(pilot, lambda: len(app.engines[0].prompts) == 4)
        said = [turn["content"] for turn in app.engines[0].prompts[-1]]
        assert said == ["first", "Yes.", "second", "Yes.", "third"]


async def test_another_reply_is_another_branch(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Yes.",)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        await tell(pilot, "/retry")
        await until(pilot, lambda: "Scripted-135M < 2/2 >" in shown(pilot))
        await answered(pilot)
        assert app.engines[0].prompts == [[{"role": "user", "content": "why?"}]] * 2
        assert shown(pilot).count("▌ why?") == 1
        await pilot.press("alt+left")
        await until(pilot, lambda: "Scripted-135M < 1/2 >" in shown(pilot))
        await pilot.press("alt+right")
        await until(pilot, lambda: "Scripted-135M < 2/2 >" in shown(pilot))
        await pilot.press("alt+r")
        await until(pilot, lambda: "Scripted-135M < 3/3 >" in shown(pilot))
        await answered(pilot)
        await tell(pilot, "/edit")
        await until(pilot, lambda: prompt(pilot).text == "why?")


async def test_a_message_is_chosen_with_keys_and_left_with_escape(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("line\n\n",) * 60))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        view = transcript(pilot)
        await pilot.press("alt+up", "alt+up", "alt+up")
        await until(pilot, lambda: "Question 1/2" in bar(pilot))
        row = shown(pilot).split("\n").index("  ▌ why?")
        assert view.scroll_offset.y <= row < view.scroll_offset.y + view.size.height
        marked = [y for y in range(view.size.height) if view.render_line(y).text.startswith("┃")]
        assert marked == [row - view.scroll_offset.y]
        await pilot.press("alt+down", "alt+down")
        await until(pilot, lambda: bar(pilot) == "")
        await pilot.press("d", "alt+e", "z", "escape")
        assert prompt(pilot).text == "d" and bar(pilot) == ""
        await pilot.press("alt+e", "enter")
        await until(pilot, lambda: "▌ why?\n  < 2/2 >" in shown(pilot))


async def test_a_reply_that_fails_leaves_what_was_there(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Yes.",)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "why?")
        await answered(pilot)
        app.engines[0].script = Script(error=ContextFull("99 tokens do not fit"))
        await tell(pilot, "/retry")
        await until(pilot, lambda: "99 tokens do not fit" in shown(pilot))
        assert "Yes." in shown(pilot) and "< " not in shown(pilot)
        await tell(pilot, "and?")
        await until(pilot, lambda: "No reply." in shown(pilot))
        assert "▌ and?" in shown(pilot) and state(pilot) == "ready"
        app.engines[0].script = Script(pieces=("No.",))
        await tell(pilot, "or?")
        await until(pilot, lambda: "▌ or?\n  < 2/2 >" in shown(pilot))
        await answered(pilot, 2)
        assert [turn["content"] for turn in app.engines[0].prompts[-1]] == ["why?", "Yes.", "or?"]


async def test_a_fork_is_a_conversation_of_its_own(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("Yes.",)), system="Be brief.")
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "first")
        await answered(pilot)
        await tell(pilot, "second")
        await answered(pilot, 2)
        old = tree(pilot)
        await pilot.press("alt+up", "alt+up", "alt+up")
        await until(pilot, lambda: "Reply 2/4" in bar(pilot))
        await pilot.press("alt+n")
        await until(pilot, lambda: "A fork of “first”" in shown(pilot))
        assert tree(pilot).id != old.id and "second" not in shown(pilot)
        await tell(pilot, "other")
        await until(pilot, lambda: len(app.engines[0].prompts) == 3)
        said = [turn["content"] for turn in app.engines[0].prompts[-1]]
        assert said == ["Be brief.", "first", "Yes.", "other"]
        titles = {each.title for each in await app.store.conversations()}
        assert titles == {"first", "first (fork)"}
        assert len((await app.store.open(old.id)).path()) == 4


async def test_nothing_to_do_is_said(make_app: MakeApp) -> None:
    async with make_app().run_test() as pilot:
        await loaded(pilot)
        await pilot.press("alt+e", "alt+r", "alt+n", "alt+left", "alt+up")
        for words in ("no question to edit", "no question to answer", "nothing to fork", "no other branch"):
            await until(pilot, lambda words=words: words in notifications(pilot))  # type: ignore[misc]


def test_branches_share_what_the_cache_holds_of_their_beginning() -> None:
    """The tiny Qwen 3 on the CPU answers a second wording: what comes before it is not computed again."""
    thread = EngineThread(
        lambda model, kv, progress, cancelled: model,
        lambda path, kv, progress, **_: Engine.open(path, device="cpu", kv=kv, progress=progress),
        lambda name, progress, cancelled: name,
    )
    thread.submit(Load(str(QWEN3)))
    before = ({"role": "user", "content": "What is a tide?"}, {"role": "assistant", "content": "The sea that rises."})
    for number, wording in enumerate(("And the moon?", "And the moon, then?", "And the moon?")):
        messages = (*before, {"role": "user", "content": wording})
        thread.submit(Generate(number, messages, Sampling(temperature=0), 4))
    timings = []
    for _ in range(3):
        _, events = wait(thread, Finished)
        timings += [each.event.timings for each in events if isinstance(getattr(each, "event", None), Finished)]
        if len(timings) >= 3:
            break
    thread.shutdown()
    assert timings[0].reused_tokens == 0
    prefix = timings[1].reused_tokens
    assert timings[0].prompt_tokens // 2 < prefix < timings[0].prompt_tokens
    assert timings[2].reused_tokens == prefix
