"""Keys by the ids of what they do: the default ones, and those that the person chose instead."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys, key_to_character
from textual.screen import ModalScreen
from textual.widgets import TextArea

_MODIFIERS = {"ctrl", "shift", "alt", "super", "meta", "hyper"}
_NAMED = {key.value.rpartition("+")[2] for key in Keys if not key.value.startswith("<")}
# Their keys work in any widget of the chat.
_EVERYWHERE = {"app", "chat"}


@dataclass(frozen=True)
class KeyBinding:
    """Something that keys do. `keys` are the default ones; the first part of `id` is the place where they work."""

    id: str
    keys: tuple[str, ...]
    title: str
    priority: bool
    modal: bool
    """Whether it belongs to a screen that covers the others."""

    @property
    def place(self) -> str:
        return self.id.partition(".")[0]


def key_bindings() -> tuple[KeyBinding, ...]:
    """All that keys do in the classes of this application that are loaded: each binding with an id, in place order."""
    declared = [(binding, issubclass(owner, ModalScreen)) for owner in _own_classes(DOMNode) for binding in _of(owner)]
    modal_places = {(binding.id or "").partition(".")[0] for binding, modal in declared if modal}
    found: dict[str, KeyBinding] = {}
    for binding, _ in declared:
        if (id := binding.id) is not None:
            modal = id.partition(".")[0] in modal_places
            title = binding.tooltip or binding.description or id.partition(".")[2].replace("_", " ").capitalize()
            found[id] = KeyBinding(id, _split(binding.key), title, binding.priority, modal)
    places = list(dict.fromkeys(("app", "chat", "prompt", *(each.place for each in found.values()))))
    return tuple(sorted(found.values(), key=lambda each: places.index(each.place)))


def keys_in_effect(known: Sequence[KeyBinding], keymap: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The keys by the ids of what they do: those of `keymap` where it has any, else the default ones."""
    return {each.id: _split(keymap[each.id]) if each.id in keymap else each.keys for each in known}


def _own_classes(base: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for each in base.__subclasses__():
        if each.__module__.startswith("app."):
            yield each
        yield from _own_classes(each)


def _of(owner: type[DOMNode]) -> Iterable[Binding]:
    return (binding for binding in owner.__dict__.get("BINDINGS", ()) if isinstance(binding, Binding))


def _split(keys: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in keys.split(",") if key.strip())


def usable_keys(wanted: Mapping[str, str], known: Sequence[KeyBinding]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The keymap for Textual out of what was wanted, and a notice for each part of it that cannot be had."""
    by_id = {each.id: each for each in known}
    keymap: dict[str, str] = {}
    notices = []
    for id, keys in wanted.items():
        if (binding := by_id.get(id)) is None:
            notices.append(f"keys.{id} is {keys!r}, but nothing is called {id}; the settings list what is.")
        elif problem := key_problem(binding, keys, wanted, known):
            notices.append(f"keys.{id} is {keys!r}: {problem}; it stays {', '.join(binding.keys)}.")
        else:
            keymap[id] = ",".join(_split(keys))
    return keymap, tuple(notices)


def key_problem(binding: KeyBinding, keys: str, wanted: Mapping[str, str], known: Sequence[KeyBinding]) -> str:
    """Why these keys cannot be the binding's, or "" if they can; `wanted` are the keys chosen for others."""
    if not (chosen := _split(keys)):
        return "expected a key such as f7 or ctrl+k"
    for key in chosen:
        if not _exists(key):
            return f"there is no key {key}, expected one such as f7, ctrl+k or shift+up"
        if not binding.modal and binding.place in _EVERYWHERE | {"prompt"}:
            if (key_to_character(key) or "\n").isprintable():
                return f"{key} is typed into the message, expected one such as f7 or ctrl+k"
            if key not in binding.keys and not binding.priority and key in _editing_keys():
                return f"{key} edits the message"
        for other in known:
            taken = _split(wanted[other.id]) if other.id in wanted else other.keys
            by_default = key in binding.keys and key in other.keys
            if other.id != binding.id and key in taken and not by_default and _meet(binding, other):
                return f"{key} is the key of {other.id} ({other.title})"
    return ""


def _exists(key: str) -> bool:
    *modifiers, name = key.split("+")
    if not set(modifiers) <= _MODIFIERS:
        return False
    if len(name) == 1 or name in _NAMED:
        return bool(name.strip())
    try:
        unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return False
    return True


def _editing_keys() -> set[str]:
    # The prompt leaves the function keys to the chat.
    keys = {key for binding in TextArea.BINDINGS if isinstance(binding, Binding) for key in _split(binding.key)}
    return {key for key in keys if not re.fullmatch(r"f\d+", key)}


def _meet(one: KeyBinding, other: KeyBinding) -> bool:
    """Whether both can be in reach at once."""
    if one.place == other.place:
        return True
    if one.modal or other.modal:
        # What covers the chat hides its keys, but not those that the application looks at first.
        return any(each.place == "app" and each.priority for each in (one, other))
    return not _EVERYWHERE.isdisjoint((one.place, other.place))
