"""What a person who has never used the chat needs to know, with the keys as they are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PANELS = ("chat.dtypes", "chat.memory", "chat.kv", "chat.lora")


def guide_rows(keys: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """(key, what it is for), a line each. `keys` are those in effect as they are shown, by the ids of bindings."""

    def first(id: str) -> str:
        return keys[id][0]

    return (
        (first("chat.models"), "choose a model: fetched once, it runs on this machine"),
        (first("prompt.send"), f"send what you wrote; {first('prompt.newline')} begins a new line"),
        (first("chat.stop"), "stop a reply, keeping its text"),
        (
            " ".join(map(first, _PANELS)),
            f"look inside: dtypes, memory, KV cache, LoRA; {first('chat.panels')}: all",
        ),
        ("/", f"begins a command, such as /system; {first('prompt.complete')} completes it"),
        (first("chat.history"), "your conversations: all are kept, on this machine"),
        (first("app.help"), "help for where you are, this guide too"),
    )
