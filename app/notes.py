"""What the chat says about itself in the transcript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.engine_events import Loaded
from app.panels.lora_row import strength_words
from app.sanitize import visible
from app.units import format_count, format_seconds
from inference.kv.names import SUMMARIES

if TYPE_CHECKING:
    from app.engine_protocol import InfoLike
    from app.store.records import Message
    from inference.lora.adapter_set import AppliedAdapter

_REASONS: Mapping[str | None, str] = {
    "stop": "",
    "length": "cut at the token limit",
    "context": "cut: the context is full",
    "cancelled": "stopped",
    "error": "broken off",
    None: "cut off",  # the program ended before the reply did
}
NO_REPLY = "No reply. /retry asks again; another message takes the place of this one."
CUT_OFF = frozenset({"length", "cancelled", "error", None})
"""Why replies end that can go on."""


def loaded_notes(loaded: Loaded, goes_on: bool) -> Iterator[str]:
    """What to know of a model that is ready; `goes_on` says that there is a conversation already."""
    info = loaded.info
    where = f"{info.device} ({info.adapter})" if info.adapter else info.device
    reason = f": {info.device_reason}" if info.device_reason else ""
    yield f"{loaded.title} is ready after {format_seconds(info.load_s)}, on {where}{reason}."
    if goes_on:
        yield f"The conversation is kept and read anew with your next message; KV layout: {info.kv_layout}."
    yield from info.notices
    if loaded.thinks:
        yield "The model may think before it answers; ctrl+t or a click on the line of a thought unfolds it."


def adapters_note(adapters: Sequence[AppliedAdapter], goes_on: bool) -> str:
    """The LoRA adapters in use from now on; `goes_on` says that the model has read something already."""
    anew = " What was said is read anew with your next message." if goes_on else ""
    return f"LoRA: {adapter_words(adapters) or 'no adapter is in use'}.{anew}"


def adapter_words(adapters: Sequence[AppliedAdapter]) -> str:
    """Adapters and their strengths in a few words."""
    return ", ".join(f"{visible(each.adapter.name)} {strength_words(each.strength)}" for each in adapters)


def reason_words(reason: str | None) -> str:
    """Why a reply ended, in a few words; "" where it came to its own end."""
    return _REASONS.get(reason, reason or "")


def figures_line(reason: str | None, figures: Mapping[str, Any], adapters: str = "") -> str:
    """The line under a reply: how much, how fast, what of the prompt was computed anew, and with which adapters.

    `reason` is that of the stored message, `figures` has the fields of `Timings`, or nothing.
    """
    parts = [reason_words(reason), "alt+g goes on" if reason in CUT_OFF else ""]
    if figures:
        output, rate, first, prompt, reused = (
            value if isinstance(value := figures.get(name), int | float) else 0
            for name in ("output_tokens", "decode_tps", "ttft_s", "prompt_tokens", "reused_tokens")
        )
        parts.append(f"{output} tokens")
        if rate:
            parts.append(f"{rate:.1f} tok/s")
        if first:
            parts.append(f"first after {format_seconds(first)}")
        parts.append(f"prompt {prompt - reused} new, {reused} reused")
    return " · ".join(part for part in (*parts, adapters) if part)


def full_context_note(given: Iterable[Message], context: int) -> str:
    """What can be done where these messages and a reply fill the context of so many tokens."""
    oldest = next((message.text for message in given if message.role == "user"), "")
    first = f" ({visible(shortened(oldest))})" if oldest else ""
    return (
        f"The context of {context:,} tokens is full. /drop leaves out the oldest question and its reply{first}, "
        "/drop N so many; /new starts over. A larger context is set with --context when Glasschat starts; "
        "/kv tiered-int8 holds one in less memory."
    )


def dropped_note(questions: Sequence[str]) -> str:
    """Which questions were left out of the conversation."""
    if not questions:
        return "There is nothing to leave out."
    which = ", ".join(map(visible, map(shortened, questions)))
    return f"Left out, with their replies: {which}. What remains is read anew with your next message."


def layouts_note(asked: str, layout: str, by_layer: str) -> str:
    """The KV layouts and which is used now; `asked` is a name that is none of them, or "".

    `by_layer` says what the layout chosen means for the layers of the model that is loaded.
    """
    unknown = f"There is no KV layout {asked}. " if asked else ""
    now = f"It is {layout} now" + (f": {by_layer}." if by_layer != layout else ".")
    lines = [f"{name}: {summary}" for name, summary in SUMMARIES.items()]
    return "\n".join((f"{unknown}/kv with a name changes the KV layout. {now}", *lines))


def layers_words(gpu_layers: int | None) -> str:
    """How many layers go to WebGPU, in words."""
    return "as many layers as fit" if gpu_layers is None else format_count(gpu_layers, "layer")


def place_note(asked: str, gpu_layers: int | None, info: InfoLike | None) -> str:
    """What runs where now and how that is changed; `asked` is not a number of layers, or ""."""
    unknown = f"{visible(asked)} is not a number of layers. " if asked else ""
    where = "" if info is None else f" Now: {info.placement or f'all on {info.device}'}."
    asked_for = f"Asked for: {layers_words(gpu_layers)}."
    how = "/place with a number runs so many of the first layers on WebGPU, /place auto as many as fit."
    return f"{unknown}{how} {asked_for}{where}"


def shortened(text: str, length: int = 40) -> str:
    """The beginning of a message, in quotation marks, on one line."""
    line = " ".join(text.split())
    return f"“{line[:length].rstrip()}…”" if len(line) > length else f"“{line}”"


def reply_name(name: str, place: tuple[int, int], continued: bool) -> str:
    """The line above a reply; `place` is which one of how many it is below its question."""
    return " ".join(filter(None, (name, "· continued" if continued else "", branch_mark(place))))


def branch_mark(place: tuple[int, int]) -> str:
    """The mark of a message that has others in its place: which one it is, of how many; "" where it is the only one."""
    number, count = place
    return f"< {number}/{count} >" if count > 1 else ""
