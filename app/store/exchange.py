"""Conversations as files: Markdown to read, JSON to keep and to bring back.

The JSON file is one object, in UTF-8:

    format      "glasschat-conversation"
    version     1
    title       text
    system      text, the system prompt, "" for none
    active      the id of the last message of the branch shown
    messages    a list, parents before their children, at least one:
        id              a whole number, not used twice
        parent          the id of a message before it, or null for a first message
        role            "user" or "assistant"
        text            text, raw
        created         seconds since 1970
        finish_reason   "sent" for a user's message, for a reply why it ended, null if it was never finished
        model           text, the model's name
        settings        an object: what the reply was made with
        figures         an object: how fast it was made, and what else was measured

A text is a string, or where it is no valid Unicode (a lone surrogate) an object with one key, `base64`: its bytes in
UTF-8 with surrogates passed. Nothing may lack, and nothing else may be there.
"""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from app.store.records import HistoryError, Message, StoredConversation, new_id, reason, title_of
from app.store.schema import from_blob, to_blob
from app.store.writes import AddConversation, AddMessage, Show, Write

_FORMAT = "glasschat-conversation"
_VERSION = 1
_MAX_IMPORT_BYTES = 256 << 20


def write_export(conversation: StoredConversation, path: Path) -> None:
    """Write to a new file, as its ending says; HistoryError where that is not possible."""
    formats: Mapping[str, Callable[[StoredConversation], bytes]] = {".md": to_markdown, ".json": to_json}
    if path.suffix.lower() not in formats:
        raise HistoryError(f"A conversation is exported to a name that ends with .md or .json, not to {path.name}.")
    data = formats[path.suffix.lower()](conversation)
    try:
        with path.open("xb") as file:
            try:
                file.write(data)
                file.flush()
            except OSError:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise HistoryError(f"{path} is there already; choose another name.") from None
    except (OSError, ValueError) as error:
        raise HistoryError(f"The conversation could not be exported to {path}: {reason(error)}.") from None


def read_export(path: Path) -> StoredConversation:
    """The conversation in a JSON file. HistoryError, which names the file and the place, for any other."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_IMPORT_BYTES:
            raise HistoryError(f"it is no file, or larger than {_MAX_IMPORT_BYTES >> 20} MiB")
        return from_json(path.read_bytes())
    except (HistoryError, OSError, ValueError) as error:
        raise HistoryError(f"{path} cannot be imported: {reason(error)}.") from None


def to_markdown(conversation: StoredConversation) -> bytes:
    """The branch shown, with roles as headings and the texts as they are."""
    parts = [f"# {conversation.title}"]
    if conversation.system:
        parts += ["## System", conversation.system]
    for message in conversation.branch():
        model = " ".join(message.model.split())
        parts.append("## User" if message.role == "user" else f"## Assistant ({model})" if model else "## Assistant")
        parts.append(message.text)
        # Else what follows a reply that was stopped inside a code block would be code too.
        if fence := _open_fence(message.text):
            parts[-1] += f"\n{fence}"
    return to_blob("\n\n".join(parts) + "\n")


def to_json(conversation: StoredConversation) -> bytes:
    """The whole conversation in the format that this module describes."""
    number = {message.id: index for index, message in enumerate(conversation.messages, 1)}
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "title": _text_out(conversation.title),
        "system": _text_out(conversation.system),
        "active": number[conversation.active],
        "messages": [
            {
                "id": number[message.id],
                "parent": None if message.parent is None else number[message.parent],
                "role": message.role,
                "text": _text_out(message.text),
                "created": message.created,
                "finish_reason": message.finish_reason,
                "model": _text_out(message.model),
                "settings": message.settings,
                "figures": message.figures,
            }
            for message in conversation.messages
        ],
    }
    # Settings may hold lone surrogates too; in JSON an escape stands for one.
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def from_json(data: bytes) -> StoredConversation:
    """What `to_json` wrote. HistoryError, which names the place and what was expected, for anything else."""
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise HistoryError(f"it is not UTF-8 at byte {error.start:,}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"it is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise HistoryError(f'it is not an exported conversation: its "format" is not "{_FORMAT}"')
    if document.get("version") != _VERSION or isinstance(document["version"], bool):
        raise HistoryError(f"its version is {_shown(document.get('version'))}, and only {_VERSION} is known here")
    _check_keys(document, "the file", ("format", "version", "title", "system", "active", "messages"))
    entries = document["messages"]
    if not isinstance(entries, list) or not entries:
        raise _refusal("messages", entries, "a list of at least one message")
    seen: set[int] = set()
    messages = tuple(_message_in(entry, f"message {index:,}", seen) for index, entry in enumerate(entries, 1))
    if not _is_whole(active := document["active"]) or active not in seen:
        raise _refusal("active", active, "the id of a message")
    title, system = _text_in(document["title"], "title"), _text_in(document["system"], "system")
    return StoredConversation(title, system, active, messages)


def as_new(conversation: StoredConversation) -> tuple[int, tuple[Write, ...]]:
    """What adds the conversation to a history, under ids of its own; and its id there."""
    conversation_id = id = new_id()
    title = title_of(conversation.title) or title_of(conversation.messages[0].text) or "Untitled"
    writes: list[Write] = [AddConversation(id, title, conversation.system, conversation.messages[0].created)]
    ids: dict[int | None, int | None] = {None: None}
    for message in conversation.messages:
        ids[message.id] = id = new_id(id)
        copy = Message(**{**vars(message), "id": id, "parent": ids[message.parent]})
        writes.append(AddMessage(conversation_id, copy))
    active = ids[conversation.active]
    assert active is not None
    return conversation_id, (*writes, Show(conversation_id, active))


def _message_in(entry: Any, where: str, seen: set[int]) -> Message:
    """A checked message; its id is added to `seen`, the ids of the messages before it."""
    if not isinstance(entry, dict):
        raise _refusal(where, entry, "an object")
    keys = ("id", "parent", "role", "text", "created", "finish_reason", "model", "settings", "figures")
    _check_keys(entry, where, keys)
    id, parent, role, text, created, finish_reason, model, settings, figures = (entry[key] for key in keys)
    if not _is_whole(id) or id in seen:
        raise _refusal(f"{where}, id", id, "a whole number that no message before it has")
    if parent is not None and (not _is_whole(parent) or parent not in seen):
        raise _refusal(f"{where}, parent", parent, "null or the id of a message before it")
    if role not in ("user", "assistant"):
        raise _refusal(f"{where}, role", role, '"user" or "assistant"')
    if isinstance(created, bool) or not isinstance(created, (int, float)) or not 0 <= created < 1e11:
        raise _refusal(f"{where}, created", created, "seconds since 1970")
    if finish_reason is not None and not (
        isinstance(finish_reason, str) and re.fullmatch("[a-z]{1,20}", finish_reason)
    ):
        raise _refusal(f"{where}, finish_reason", finish_reason, "null or one word in small letters")
    seen.add(id)
    return Message(
        id,
        parent,
        role,
        _text_in(text, f"{where}, text"),
        float(created),
        finish_reason,
        _text_in(model, f"{where}, model"),
        _object_in(settings, f"{where}, settings"),
        _object_in(figures, f"{where}, figures"),
    )


def _text_out(text: str) -> str | dict[str, str]:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(to_blob(text)).decode("ascii")}
    return text


def _text_in(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
            return from_blob(base64.b64decode(value["base64"], validate=True))
    except ValueError:
        value = value["base64"]
    raise _refusal(where, value, "text, or an object with base64 of UTF-8")


def _object_in(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(where, value, "an object")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise _refusal(where, value, "numbers that are finite") from None
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_keys(table: dict[str, Any], where: str, keys: tuple[str, ...]) -> None:
    if missing := [key for key in keys if key not in table]:
        raise HistoryError(f"{where} lacks {', '.join(missing)}")
    if unknown := [key for key in table if key not in keys]:
        raise HistoryError(f"{where} has {_shown(unknown[0])}, which version {_VERSION} does not know")


def _refusal(where: str, value: Any, expected: str) -> HistoryError:
    return HistoryError(f"{where} is {_shown(value)}, expected {expected}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _shown(value: Any) -> str:
    """A value of a file, short and on one line, whatever it holds."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else f"a list of {len(value):,}"
    if isinstance(value, int) and abs(value) > 1e18:
        return "a number of many digits"
    text = json.dumps(value[:41] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _open_fence(text: str) -> str:
    """The fence of a code block that `text` leaves open, "" if it leaves none."""
    fence = ""
    for line in text.split("\n"):
        marks = re.match(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})", line)
        if marks is None:
            continue
        if not fence:
            fence = marks[1]
        elif marks[1].startswith(fence) and not line[marks.end() :].strip():
            fence = ""
    return fence
