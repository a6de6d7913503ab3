"""How long the history takes. Run with `-s` to read the figures; the limits are those of the design, or far off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.store import schema
from app.store.records import Message, new_id
from app.store.store import Store
from app.store.writes import AddConversation, AddMessage, Finish, Grow, Write, write_all

KB = "It was a bright cold day, and the clocks were striking. " * 18


def long_conversation(messages: int) -> tuple[int, list[Write]]:
    id = parent = new_id()
    writes: list[Write] = [AddConversation(id, "A long one", "", 0.0)]
    above = None
    for number in range(messages):
        parent = new_id(parent)
        role = ("user", "assistant")[number % 2]
        writes.append(AddMessage(id, Message(parent, above, role, KB, float(number), "stop")))  # type: ignore[arg-type]
        above = parent
    return id, writes


def milliseconds(what: str, began: float, count: int = 1) -> float:
    """Print and return the time of each of `count` actions since `began`."""
    each = (time.perf_counter() - began) * 1000 / count
    print(f"{what}: {each:.3f} ms")
    return each


@pytest.mark.alone
@pytest.mark.slow
async def test_figures(path: Path) -> None:
    connection = schema.connect(path)
    id, writes = long_conversation(10_000)
    began = time.perf_counter()
    write_all(connection, writes)
    milliseconds("10,000 messages of 1 KB in one step", began)
    last = writes[-1]
    assert isinstance(last, AddMessage)

    began = time.perf_counter()
    for _ in range(200):
        write_all(connection, [AddMessage(id, Message(new_id(), last.message.id, "user", KB, 0.0, "sent"))])
    assert milliseconds("append a message of 1 KB", began, 200) < 50

    reply = Message(new_id(), last.message.id, "assistant", "", 0.0)
    write_all(connection, [AddMessage(id, reply), Grow(reply.id, "x" * 120_000)])
    began = time.perf_counter()
    for _ in range(50):
        write_all(connection, [Grow(reply.id, " and so on")])
    assert milliseconds("grow a reply of 120 KB", began, 50) < 100
    write_all(connection, [Finish(reply.id, "stop", {})])

    for _ in range(1000):
        write_all(connection, long_conversation(2)[1])
    connection.close()

    store = Store(path)
    tree = store.new()
    began = time.perf_counter()
    for _ in range(200):
        tree.add("user", KB, tree.active)
    assert milliseconds("hand a message over, on the caller's thread", began, 200) < 5
    reply = tree.add("assistant", "", tree.active)
    began = time.perf_counter()
    for _ in range(2000):
        tree.grow(reply.id, "a piece ")
    assert milliseconds("hand a piece over, on the caller's thread", began, 2000) < 5

    await store.conversations(limit=1)
    began = time.perf_counter()
    assert len(await store.conversations(limit=1000)) == 1000
    assert milliseconds("list 1,000 conversations", began) < 500
    began = time.perf_counter()
    opened = await store.open(id)
    shown = await store.messages(opened, [node.id for node in opened.path()[-40:]])
    assert milliseconds("open 10,000 messages and read the last 40", began) < 1000
    assert len(shown) == 40
    began = time.perf_counter()
    await store.messages(opened, [node.id for node in opened.path()])
    assert milliseconds("read all their texts", began) < 1000
    began = time.perf_counter()
    assert await store.search("no such text") == ()
    milliseconds("search 14 MB in vain", began)
    began = time.perf_counter()
    assert len(await store.search("striking")) == 50
    milliseconds("search with hits everywhere", began)
    began = time.perf_counter()
    await store.export(id, path.with_name("a.json"))
    milliseconds("export 10,000 messages", began)
    began = time.perf_counter()
    await store.import_json(path.with_name("a.json"))
    milliseconds("import 10,000 messages", began)
    assert store.close() == ""
