"""The conversation as the engine gets it, and the reply that is being written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.sanitize import Sanitizer, visible
from app.units import format_seconds
from inference.events import FinishReason, Timings

Turn = dict[str, str]


@dataclass(frozen=True)
class Conversation:
    """Turns alternate between user and assistant. `system` "" means no system message."""

    system: str = ""
    turns: tuple[Turn, ...] = ()

    def messages(self) -> tuple[Turn, ...]:
        """The messages for the chat template."""
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, *self.turns)

    def with_turn(self, role: str, content: str) -> Conversation:
        """The conversation with one more turn."""
        return replace(self, turns=(*self.turns, {"role": role, "content": content}))

    def without_last(self) -> Conversation:
        """The conversation before its last turn."""
        return replace(self, turns=self.turns[:-1])

    def without_oldest(self, exchanges: int) -> tuple[Conversation, tuple[str, ...]]:
        """The conversation without its oldest questions and their replies, and the questions that were left out."""
        starts = [index for index, turn in enumerate(self.turns) if turn["role"] == "user"]
        end = starts[exchanges] if exchanges < len(starts) else len(self.turns)
        dropped = tuple(turn["content"] for turn in self.turns[:end] if turn["role"] == "user")
        return replace(self, turns=self.turns[end:]), dropped

    def last_reply(self) -> str | None:
        """The text of the newest assistant turn, as the model wrote it."""
        return next((turn["content"] for turn in reversed(self.turns) if turn["role"] == "assistant"), None)


@dataclass
class Answer:
    """A reply that is being written: its raw pieces, and the border they pass on their way to the screen."""

    number: int
    raw: list[str] = field(default_factory=list)
    border: Sanitizer = field(default_factory=Sanitizer)
    stopped: bool = False

    def take(self, text: str) -> str:
        """Keep raw text and return its visible form."""
        self.raw.append(text)
        return self.border.feed(text)


def full_context_note(conversation: Conversation, context: int) -> str:
    """What can be done where a conversation has filled the context of so many tokens."""
    _, oldest = conversation.without_oldest(1)
    first = f" ({visible(shortened(oldest[0]))})" if oldest else ""
    return (
        f"The context of {context:,} tokens is full. /drop leaves out the oldest question and its reply{first}, "
        "/drop N so many; /clear starts over. A larger context is set with --context when Glasschat starts; "
        "/kv tiered-int8 holds one in less memory."
    )


def shortened(text: str, length: int = 40) -> str:
    """The beginning of a message, in quotation marks, on one line."""
    line = " ".join(text.split())
    return f"“{line[:length].rstrip()}…”" if len(line) > length else f"“{line}”"


_REASONS: dict[FinishReason, str] = {
    "stop": "",
    "length": "cut at the token limit",
    "context": "cut: the context is full",
    "cancelled": "stopped",
}


def figures_line(reason: FinishReason, timings: Timings) -> str:
    """The line under a reply: how much, how fast, and what of the prompt was computed anew."""
    parts = [_REASONS[reason], f"{timings.output_tokens} tokens"]
    if timings.decode_tps:
        parts.append(f"{timings.decode_tps:.1f} tok/s")
    if timings.ttft_s:
        parts.append(f"first after {format_seconds(timings.ttft_s)}")
    parts.append(f"prompt {timings.prompt_tokens - timings.reused_tokens} new, {timings.reused_tokens} reused")
    return " · ".join(part for part in parts if part)
