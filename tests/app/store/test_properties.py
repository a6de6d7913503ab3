"""Any sequence of changes leaves the history as a simple model says, also after it went through a JSON file."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from app.store.store import Store
from app.store.tree import Tree

TEXT = st.text(st.characters(), max_size=8)
"""Any characters, lone surrogates and NUL too."""
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["user", "user", "reply", "reply", "grow", "grow", "grow", "finish", "show", "system", "reopen"]
        ),
        st.integers(0, 30),
        TEXT,
    ),
    max_size=25,
)


@dataclass
class Model:
    """A conversation as lists: of messages by age, of [parent's index or None, role, text, finish reason]."""

    messages: list[tuple[int | None, str, str, str | None]] = field(default_factory=list)
    active: int | None = None
    system: str = ""

    def children(self, parent: int | None) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message[0] == parent]

    def path(self) -> list[int]:
        path, at = [], self.active
        while at is not None:
            path.insert(0, at)
            at = self.messages[at][0]
        return path

    def change(self, kind: str, index: int, text: str) -> bool:
        """Make the change; False where it does not apply."""
        count = len(self.messages)
        growing = [i for i, message in enumerate(self.messages) if message[3] is None]
        if kind == "system":
            self.system = text
        elif kind in ("user", "reply"):
            parent = None if index % (count + 1) == count else index % (count + 1)
            role, reason = ("user", "sent") if kind == "user" else ("assistant", None)
            self.messages.append((parent, role, text, reason))
            self.active = count
        elif kind == "show" and count:
            at = index % count
            while below := self.children(at):
                at = below[-1]
            self.active = at
        elif kind in ("grow", "finish") and growing:
            at = growing[index % len(growing)]
            parent, role, old, _ = self.messages[at]
            self.messages[at] = (parent, role, old + text, None) if kind == "grow" else (parent, role, old, "stop")
        else:
            return False
        return True


def change(tree: Tree, ids: list[int], model: Model, kind: str, index: int, text: str) -> None:
    """Make the same change in the tree, before the model makes it."""
    growing = [id for id, message in zip(ids, model.messages, strict=True) if message[3] is None]
    if kind == "system":
        tree.set_system(text)
    elif kind in ("user", "reply"):
        parent = (*ids, None)[index % (len(ids) + 1)]
        ids.append(tree.add("user" if kind == "user" else "assistant", text, parent).id)
    elif kind == "show" and ids:
        tree.show(ids[index % len(ids)])
    elif kind == "grow" and growing:
        tree.grow(growing[index % len(growing)], text)
    elif kind == "finish" and growing:
        tree.finish(growing[index % len(growing)], "stop")


async def compare(store: Store, tree: Tree, ids: list[int], model: Model) -> None:
    messages = await store.messages(tree, ids)
    index = {id: number for number, id in enumerate(ids)} | {None: None}
    assert [(index[m.parent], m.role, m.text, m.finish_reason) for m in messages] == model.messages
    assert [index[node.id] for node in tree.path()] == model.path()
    assert tree.system == model.system
    for number, id in enumerate(ids):
        assert [index[each] for each in tree.siblings(id)] == model.children(model.messages[number][0])


async def replay(changes: list[tuple[str, int, str]], folder: Path) -> None:
    store = Store(folder / "history.db")
    tree, ids, model = store.new(), list[int](), Model()
    for kind, index, text in changes:
        if kind == "reopen" and ids:
            await compare(store, tree, ids, model)
            assert store.close() == ""
            store = Store(folder / "history.db")
            tree = await store.open(tree.id)
            await store.messages(tree, ids)
        change(tree, ids, model, kind, index, text)
        model.change(kind, index, text)
    await compare(store, tree, ids, model)
    if ids:
        await compare(store, await store.open(tree.id), ids, model)
        await store.export(tree.id, folder / "a.json")
        copy = await store.open(await store.import_json(folder / "a.json"))
        await compare(store, copy, list(copy._nodes), model)
    assert (store.close(), store.drain()) == ("", [])


@settings(max_examples=25, deadline=None)
@given(changes=CHANGES)
def test_the_history_is_what_a_model_says(changes: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(replay(changes, Path(folder)))
