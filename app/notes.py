"""What the chat says about itself in the transcript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.conversation import Conversation
from app.engine_thread import Loaded
from app.panels.lora_row import strength_words
from app.sanitize import visible
from app.units import format_seconds
from inference.events import FinishReason, Timings
from inference.kv.names import SUMMARIES
from inference.lora.adapter_set import AppliedAdapter

_REASONS: dict[FinishReason, str] = {
    "stop": "",
    "length": "cut at the token limit",
    "context": "cut: the context is full",
    "cancelled": "stopped",
}


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


def figures_line(reason: FinishReason, timings: Timings, adapters: Sequence[AppliedAdapter] = ()) -> str:
    """The line under a reply: how much, how fast, what of the prompt was computed anew, and with which adapters."""
    parts = [_REASONS[reason], f"{timings.output_tokens} tokens"]
    if timings.decode_tps:
        parts.append(f"{timings.decode_tps:.1f} tok/s")
    if timings.ttft_s:
        parts.append(f"first after {format_seconds(timings.ttft_s)}")
    parts.append(f"prompt {timings.prompt_tokens - timings.reused_tokens} new, {timings.reused_tokens} reused")
    parts.append(adapter_words(adapters))
    return " · ".join(part for part in parts if part)


def full_context_note(conversation: Conversation, context: int) -> str:
    """What can be done where a conversation has filled the context of so many tokens."""
    _, oldest = conversation.without_oldest(1)
    first = f" ({visible(shortened(oldest[0]))})" if oldest else ""
    return (
        f"The context of {context:,} tokens is full. /drop leaves out the oldest question and its reply{first}, "
        "/drop N so many; /clear starts over. A larger context is set with --context when Glasschat starts; "
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


def shortened(text: str, length: int = 40) -> str:
    """The beginning of a message, in quotation marks, on one line."""
    line = " ".join(text.split())
    return f"“{line[:length].rstrip()}…”" if len(line) > length else f"“{line}”"
