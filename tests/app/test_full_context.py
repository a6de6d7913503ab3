"""What the chat offers where a conversation has filled the context."""

from __future__ import annotations

from textual.pilot import Pilot

from app.conversation import oldest_exchanges
from app.notes import shortened
from app.store.records import Node
from tests.app.scripted_engine import Script
from tests.app.test_chat import MakeApp, answered, loaded, say, transcript, until


async def test_a_full_context_says_what_can_be_done_and_drop_makes_room(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=("One.",), reason="context"), system="Be brief.")
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await say(pilot, "first question")
        await answered(pilot)
        await until(pilot, lambda: "is full. /drop leaves out the oldest question" in flat(pilot))
        assert "“first question”" in flat(pilot)
        await say(pilot, "second question")
        await answered(pilot, 2)
        await say(pilot, "/drop many")
        await say(pilot, "/drop")
        await until(pilot, lambda: "Left out, with their replies: “first question”." in flat(pilot))
        await say(pilot, "third question")
        await answered(pilot, 3)
        sent = [(turn["role"], turn["content"]) for turn in app.engines[0].prompts[-1]]
        assert sent == [
            ("system", "Be brief."), ("user", "second question"), ("assistant", "One."), ("user", "third question")
        ]  # fmt: skip
        await say(pilot, "/drop 9")
        await until(pilot, lambda: "“second question”, “third question”" in flat(pilot))
        await say(pilot, "/drop")
        await until(pilot, lambda: "There is nothing to leave out." in flat(pilot))


def flat(pilot: Pilot[None]) -> str:
    return " ".join(transcript(pilot).text.split())


def test_the_oldest_questions_go_with_their_replies() -> None:
    nodes = [Node(id, id - 1 or None, "user" if id % 2 else "assistant") for id in range(1, 7)]
    assert oldest_exchanges(nodes, 2) == nodes[:4]
    assert oldest_exchanges(nodes, 7) == nodes
    assert oldest_exchanges([], 1) == []


def test_a_long_question_is_shortened_to_one_line() -> None:
    assert shortened("a\n b") == "“a b”"
    assert shortened("word " * 20) == "“" + "word " * 7 + "word…”"
