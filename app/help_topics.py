"""What the help says of the place where a person is, and which keys work there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from textual.app import App
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen


@dataclass(frozen=True)
class Topic:
    """A place: its title, what is seen there, and the ids of the bindings that work there, not everywhere."""

    title: str
    text: str
    ids: tuple[str, ...]


def topic_of(place: type[DOMNode], ids: Iterable[str]) -> Topic:
    """The topic that `HELP` of a class gives: a title in Markdown, an empty line, sentences."""
    title, _, text = (place.HELP or "").partition("\n\n")
    return Topic(title.removeprefix("# ") or place.__name__, " ".join(text.split()), tuple(ids))


def topic_at(screen: Screen[object]) -> Topic:
    """Where the focus is: the nearest widget with a `HELP`, or the dialog, and the keys of all inside the chat."""
    nodes = screen.focused.ancestors_with_self if screen.focused else [screen]
    near = list(takewhile(lambda node: isinstance(node, ModalScreen) or not isinstance(node, Screen | App), nodes))
    place = next((type(node) for node in near if node.HELP), type(screen))
    found = (each.binding.id for each in screen.active_bindings.values() if each.node in near)
    return topic_of(place, dict.fromkeys(id for id in found if id))
