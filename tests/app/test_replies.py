"""What is done with a reply: copied whole and in parts, gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.code_blocks import CodeBlock, code_blocks
from inference.errors import ContextFull
from inference.thinking import KNOWN_MARKS
from tests.app.scripted_engine import Script
from tests.app.test_chat import MakeApp, answered, chat, loaded, notifications, prompt, say, state, transcript, until

CODE = "Two:\n\n```python title\nprint(1)\n```\n\n- or\n  ```\n  ls\n  ```\n\nor `x`."
WORDS = Script(pieces=tuple(f"w{i} " for i in range(5000)), tokens_per_s=200)


def test_code_is_found_wherever_it_is() -> None:
    assert code_blocks(CODE) == [CodeBlock("python", "print(1)\n"), CodeBlock("", "ls\n")]
    assert code_blocks("> ```c\n> int x;\n\nand\n\n    indented\n") == [
        CodeBlock("c", "int x;\n"),
        CodeBlock("", "indented\n"),
    ]
    assert code_blocks("```\nnot closed") == [CodeBlock("", "not closed")]


async def command(pilot: Pilot[None], text: str) -> None:
    prompt(pilot).text = text
    await pilot.press("enter")


async def test_copies(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("<think>", "Hm\x1b[0m.", "</think>", CODE), thinking=KNOWN_MARKS[0]))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await command(pilot, "/copy")
        await until(pilot, lambda: "There is no reply to copy yet" in notifications(pilot))
        await say(pilot, "how")
        await answered(pilot)
        for asked, text, said in (
            ("/copy", CODE, f"the reply ({len(CODE)} characters)"),
            ("/copy code", "ls\n", "code block 2 of 2 (3 characters)"),
            ("/copy code 1", "print(1)\n", "code block 1 of 2 (python, 9 characters)"),
            ("/copy raw", f"<think>Hm\x1b[0m.</think>{CODE}", "the whole reply"),
        ):
            await command(pilot, asked)
            await until(pilot, lambda text=text: pilot.app.clipboard == text)  # type: ignore[misc]
            await until(pilot, lambda said=said: f"Sent {said}" in notifications(pilot))  # type: ignore[misc]
        for asked, said in (
            ("/copy code 3", "code blocks 1 to 2, and none is 3"),
            ("/copy message", "No message is chosen"),
            ("/copy all", "/copy takes nothing, code"),
        ):
            await command(pilot, asked)
            await until(pilot, lambda said=said: said in notifications(pilot))  # type: ignore[misc]
        await pilot.press("alt+up", "alt+up")
        await until(pilot, lambda: chat(pilot).messages.chosen is not None)
        await pilot.press("alt+c")
        await until(pilot, lambda: pilot.app.clipboard == "how")


async def stopped(pilot: Pilot[None]) -> str:
    """Ask, stop the reply after some words, and return what there is of it."""
    await say(pilot, "go")
    await until(pilot, lambda: "w20" in transcript(pilot).text)
    await pilot.press("escape")
    await until(pilot, lambda: "stopped · alt+g goes on" in transcript(pilot).text and state(pilot) == "ready")
    return last_reply(pilot)


def last_reply(pilot: Pilot[None]) -> str:
    tree = chat(pilot).conversation.tree
    assert tree.active is not None
    message = tree.loaded(tree.active)
    assert message is not None and message.role == "assistant"
    return message.text


async def test_a_stopped_reply_goes_on_as_another_branch(make_app: MakeApp) -> None:
    app = make_app(WORDS)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        begun = await stopped(pilot)
        await pilot.press("alt+g")
        await until(pilot, lambda: "Scripted-135M · continued < 2/2 >" in transcript(pilot).text)
        # Shown whole: what there was, and what follows.
        await until(pilot, lambda: "w0 w1 w2" in transcript(pilot).text and last_reply(pilot).startswith(begun + "w0 "))
        await pilot.press("escape")
        await until(pilot, lambda: state(pilot) == "ready" and not transcript(pilot).writing)
        assert app.engines[0].begun == ["", begun]
        assert app.engines[0].prompts[1] == [{"role": "user", "content": "go"}]
        await pilot.press("alt+left")
        await until(pilot, lambda: last_reply(pilot) == begun and "continued" not in transcript(pilot).text)


async def test_a_thought_that_was_stopped_goes_on(make_app: MakeApp) -> None:
    marks = KNOWN_MARKS[0]
    pieces = ("<think>", "One. ", "Two.", "</think>", "Three.")
    app = make_app(Script(pieces=pieces, thinking=marks), settings={"max_tokens": 2})
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "go")
        await answered(pilot)
        assert "1 token; no answer" in transcript(pilot).text
        app.engines[0].script = Script(pieces=pieces[2:], thinking=marks)
        await command(pilot, "/set max_tokens default")
        await command(pilot, "/continue")
        await until(pilot, lambda: "Three." in transcript(pilot).text and state(pilot) == "ready")
        assert last_reply(pilot) == "".join(pieces)
        await until(pilot, lambda: ", 3 tokens\n" in transcript(pilot).text)  # with the one that closes it


async def test_what_cannot_go_on_says_why_and_stays(make_app: MakeApp) -> None:
    app = make_app(WORDS)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+g")
        await until(pilot, lambda: "no reply to go on with" in notifications(pilot))
        begun = await stopped(pilot)
        app.engines[0].script = Script(error=ContextFull("12 tokens do not fit"))
        await pilot.press("alt+g")
        await until(pilot, lambda: "12 tokens do not fit" in transcript(pilot).text and state(pilot) == "ready")
        assert "w0 w1" in transcript(pilot).text and last_reply(pilot) == begun
        app.engines[0].script = Script(pieces=("Done.",))
        await say(pilot, "more")
        await until(pilot, lambda: "Done." in transcript(pilot).text and state(pilot) == "ready")
        await pilot.press("alt+g")
        await until(pilot, lambda: "not cut off" in notifications(pilot))


@pytest.mark.parametrize("reason", ["cancelled", None])
async def test_a_reply_goes_on_after_a_restart(make_app: MakeApp, tmp_path: Path, reason: str | None) -> None:
    history = tmp_path / "history.sqlite"
    async with make_app(WORDS, history=history).run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        tree = chat(pilot).conversation.tree
        question = tree.add("user", "go", None)
        reply = tree.add("assistant", "Once **upon** a ", question.id, "old-model")
        if reason:
            tree.finish(reply.id, reason)
        pilot.app.store.close()  # type: ignore[attr-defined]
    app = make_app(Script(pieces=("time.",)), history=history, resume=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await until(pilot, lambda: "Once upon a" in transcript(pilot).text)
        assert "alt+g goes on" in transcript(pilot).text
        await pilot.press("alt+g")
        await until(pilot, lambda: "Once upon a time." in transcript(pilot).text and state(pilot) == "ready")
        assert app.engines[0].begun == ["Once **upon** a "]
        assert last_reply(pilot) == "Once **upon** a time."
