"""Conversations are written, listed, found, deleted and opened again; nothing written is ever changed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.store.records import SENT, HistoryError, title_of
from app.store.store import Store
from app.store.tree import Tree

MakeStore = Callable[[], Store]

HOSTILE = [
    "\x1b]52;c;aGk=\x07\x1b[2J",
    "nul \0 in the middle, then more",
    "\u202eright to left\u202c \u200f",
    "alone \ud800 and \udfff, and a pair \ud83d\ude00",
    "x" * (1 << 20),
    "[b]markup[/b]\r\n\r",
    "👩‍👩‍👧‍👦 é e\u0301 한국어",
]


def ask(tree: Tree, question: str, answer: str = "An answer.") -> int:
    """Add a question and a finished reply at the end of the branch shown; returns the reply's id."""
    parent = tree.add("user", question, tree.active)
    reply = tree.add("assistant", "", parent.id, model="tiny", settings={"temperature": 0.5})
    tree.grow(reply.id, answer)
    tree.finish(reply.id, "stop", {"output_tokens": 3})
    return reply.id


async def texts(store: Store, tree: Tree) -> list[str]:
    """The branch shown."""
    return [message.text for message in await store.messages(tree, [node.id for node in tree.path()])]


async def titles(store: Store) -> list[str]:
    return [each.title for each in await store.conversations()]


async def test_what_was_asked_is_read_from_all_conversations(store: Store) -> None:
    deleted, first, second = store.new(), store.new(), store.new()
    for tree, question in ((deleted, "gone"), (first, "one"), (second, "two"), (first, HOSTILE[0])):
        ask(tree, question)
    store.delete(deleted.id)
    assert await store.questions() == ("one", "two", HOSTILE[0])
    assert await store.questions(limit=2) == ("two", HOSTILE[0])


async def test_replies_that_grow_at_the_same_time_come_back_whole(store: Store, make_store: MakeStore) -> None:
    tree = store.new()
    question = tree.add("user", "why?", None).id
    replies = [tree.add("assistant", "", question).id for _ in range(3)]
    for index in range(200):
        for name, id in zip("abc", replies, strict=True):
            tree.grow(id, f"{name}{index} ")
    tree.finish(replies[1], "stop")
    tree.grow(replies[2], "end")
    store.close()
    other = make_store()
    opened = await other.open(tree.id)
    found = [message.text for message in await other.messages(opened, replies)]
    ends = ("", "", "end")
    assert found == ["".join(f"{name}{n} " for n in range(200)) + end for name, end in zip("abc", ends, strict=True)]


async def test_a_conversation_comes_back_as_it_was(store: Store, make_store: MakeStore) -> None:
    tree = store.new(system="Be brief.")
    assert await store.conversations() == ()
    ask(tree, "What is a\nKV cache?", "Keys and values.")
    again = await make_store().open((await store.conversations())[0].id)
    question, reply = await store.messages(again, [node.id for node in again.path()])
    assert (again.system, question.text, question.role, question.finish_reason) == (
        "Be brief.",
        "What is a\nKV cache?",
        "user",
        SENT,
    )
    assert (reply.text, reply.role, reply.finish_reason) == ("Keys and values.", "assistant", "stop")
    assert (reply.model, reply.settings, reply.figures) == ("tiny", {"temperature": 0.5}, {"output_tokens": 3})
    assert await titles(store) == ["What is a KV cache?"]
    assert again.loaded(reply.id) == tree.loaded(reply.id)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_is_kept_to_the_byte(store: Store, make_store: MakeStore, text: str) -> None:
    tree = store.new(system=text)
    question = tree.add("user", text, None)
    reply = tree.add("assistant", "", question.id, model=text[:100])
    for start in range(0, len(text), max(1, len(text) // 7)):
        tree.grow(reply.id, text[start : start + max(1, len(text) // 7)])
    await store.conversations()
    other = make_store()
    again = await other.open(tree.id)
    read = await other.messages(again, [question.id, reply.id])
    assert [message.text for message in read] == [text, text]
    assert (again.system, read[1].model, read[1].finish_reason) == (text, text[:100], None)


async def test_editing_and_asking_again_make_branches(store: Store, make_store: MakeStore) -> None:
    tree = store.new()
    first = ask(tree, "one", "1")
    second = ask(tree, "two", "2")
    first_question, _, question, _ = tree.path()
    edited = tree.add("user", "two, edited", question.parent)
    assert [node.id for node in tree.path()][-1] == edited.id
    assert tree.siblings(question.id) == tree.siblings(edited.id) == (question.id, edited.id)
    again = tree.add("assistant", "2 again", edited.id)
    tree.finish(again.id, "stop")
    other_start = tree.add("user", "zero", None)
    assert tree.siblings(other_start.id) == (first_question.id, other_start.id)
    tree.show(question.id)
    assert await texts(store, tree) == ["one", "1", "two", "2"]
    tree.show(first)
    assert await texts(store, tree) == ["one", "1", "two, edited", "2 again"]
    tree.show(second)
    await store.conversations()  # answered when all before it is written
    other = make_store()
    reopened = await other.open(tree.id)
    assert await texts(other, reopened) == ["one", "1", "two", "2"]
    assert reopened.siblings(edited.id) == (question.id, edited.id)
    assert reopened.siblings(other_start.id) == tree.siblings(other_start.id)


async def test_what_is_finished_never_changes(store: Store, path: Path) -> None:
    tree = store.new()
    reply = ask(tree, "one")
    with pytest.raises(ValueError, match="finished"):
        tree.grow(reply, "more")
    with pytest.raises(ValueError, match="finished"):
        tree.finish(reply, "stop")
    await store.conversations()
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="never changes"):
        connection.execute("UPDATE message SET body = x'00'")
    connection.close()


async def test_a_growing_reply_is_in_the_file_within_a_second(store: Store, make_store: MakeStore) -> None:
    tree = store.new()
    reply = tree.add("assistant", "", tree.add("user", "one", None).id)
    await store.conversations()
    tree.grow(reply.id, "so ")
    tree.grow(reply.id, "far")
    began, other = time.monotonic(), make_store()
    while True:
        (found,) = await other.messages(await other.open(tree.id), [reply.id])
        if found.text:
            break
        await asyncio.sleep(0.01)
    assert (found.text, found.finish_reason) == ("so far", None)
    assert time.monotonic() - began < 1


async def test_the_list_is_newest_first_in_pages(store: Store) -> None:
    trees = [store.new() for _ in range(7)]
    for index, tree in enumerate(trees):
        ask(tree, f"number {index}")
    time.sleep(0.002)
    ask(trees[2], "once more")
    pages, page = [], await store.conversations(limit=3)
    while page:
        pages.append([each.title for each in page])
        page = await store.conversations(before=page[-1], limit=3)
    assert pages == [["number 2", "number 6", "number 5"], ["number 4", "number 3", "number 1"], ["number 0"]]


async def test_renaming_and_deleting_with_undo(store: Store, path: Path, make_store: MakeStore) -> None:
    tree, other = store.new(), store.new()
    ask(tree, "secret words")
    ask(other, "plain words")
    store.rename(tree.id, "  A\nname \n")
    assert "A name" in await titles(store)
    store.rename(tree.id, " \n ")
    assert "A name" in await titles(store)
    store.delete(tree.id)
    assert await titles(store) == ["plain words"]
    assert [hit.conversation.id for hit in await store.search("words")] == [other.id]
    store.restore(tree.id)
    assert sorted(await titles(store)) == ["A name", "plain words"]
    store.delete(tree.id)
    tree.add("user", "I go on", tree.active)
    assert sorted(await titles(store)) == ["A name", "plain words"]
    store.delete(tree.id)
    store.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE conversation SET deleted = deleted - 8 * 86400")
    later = make_store()
    assert await titles(later) == ["plain words"]
    with pytest.raises(HistoryError, match="no longer"):
        await later.open(tree.id)
    left = connection.execute("SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM search)").fetchone()
    connection.close()
    assert left == (2, 2)


async def test_a_message_of_a_dropped_conversation_is_refused_aloud(store: Store, path: Path) -> None:
    tree, other = store.new(), store.new()
    ask(tree, "one")
    ask(other, "two")
    await store.conversations()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    with connection:
        connection.execute("DELETE FROM conversation WHERE id = ?", (tree.id,))
    connection.close()
    ask(tree, "three")
    ask(other, "four")
    assert await titles(store) == ["two"]
    assert len(await store.messages(other, [node.id for node in other.path()])) == 4
    assert any("refused" in notice for notice in store.drain())


@pytest.mark.parametrize(
    ("text", "query", "found"),
    [
        ("Der Fußball ist RUND", "fussball rund", True),
        ("分散型キャッシュの話", "ッシ", True),
        ("中文对话记录", "对", True),
        ("a family 👩‍👩‍👧‍👦 here", "👩‍👩‍👧‍👦", True),
        ("cafe\u0301", "CAFÉ", True),
        ("50% of a_b", "50%", True),
        ("50 of ab", "5%", False),
        ("after \0 a nul", "nul", True),
        ("lone \ud800 surrogate", "surrogate", True),
        ("two words far apart", "apart two", True),
        ("two words", "two three", False),
        ("anything", "  ", False),
        ("anything", "\0", False),
        ("quotes \" and ' and *", "\" ' *", True),
    ],
)
async def test_search_finds_any_script(store: Store, text: str, query: str, found: bool) -> None:
    tree = store.new()
    question = tree.add("user", "Nothing of it. " * 3, None)
    tree.add("assistant", f"First line.\n{'long ' * 50}{text}{' tail' * 50}\nLast line.", question.id)
    ask(store.new(), "another one", "without it")
    hits = await store.search(query)
    assert [hit.conversation.id for hit in hits] == ([tree.id] if found else [])
    if found:
        assert len(hits[0].excerpt) <= 82
        assert "First line" not in hits[0].excerpt


async def test_search_gives_each_conversation_once_and_titles_too(store: Store) -> None:
    trees = [store.new() for _ in range(3)]
    for tree in trees:
        for _ in range(3):
            ask(tree, "the needle", "in hay")
    named = store.new()
    ask(named, "something else")
    store.rename(named.id, "Needle box")
    hits = await store.search("NEEDLE")
    assert [hit.conversation.id for hit in hits] == [trees[2].id, trees[1].id, trees[0].id, named.id]
    assert (hits[0].message, hits[0].excerpt) == (trees[2].path()[-2].id, "the needle")
    assert (hits[3].message, hits[3].excerpt) == (None, "")
    assert len(await store.search("needle", limit=2)) == 2


async def test_without_a_file_all_works_in_memory() -> None:
    store = Store(None)
    ask(tree := store.new(), "kept for now")
    assert await titles(store) == ["kept for now"]
    assert await texts(store, await store.open(tree.id)) == ["kept for now", "An answer."]
    assert store.close() == ""


async def test_a_closed_history_says_so(store: Store) -> None:
    assert store.close() == ""
    with pytest.raises(HistoryError, match="closed"):
        await store.conversations()


def test_titles_are_one_line_of_first_words() -> None:
    assert title_of(" \n\t ") == ""
    assert title_of("one\n two") == "one two"
    assert title_of("word " * 40) == ("word " * 12).strip() + "…"
    assert title_of("字" * 100) == "字" * 60 + "…"
