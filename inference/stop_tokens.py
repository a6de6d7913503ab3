"""The tokens that end a reply, gathered from everywhere that names some.

Files name one each: config.json often only the end of a text, generation_config.json the end of a turn as well, and
conversions drop the latter. A token that is missed lets the model go on and play both sides of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Texts that end a turn or a text in the families that exist: a file names only one of its end tokens.
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|assistant_end|>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001
    }
)


@dataclass(frozen=True)
class StopToken:
    """A token that ends a reply, and where that is said."""

    id: int
    text: str
    sources: tuple[str, ...]


def describe_stops(stops: Iterable[StopToken]) -> str:
    """The stop tokens for people: text, id, and everything that names each."""
    told = (f"{stop.text} ({stop.id}, from {', '.join(stop.sources)})" for stop in stops)
    return "; ".join(told) or "none: replies end at the limit of tokens only"


def gather_stops(
    declared: Iterable[tuple[str, int]], added: Mapping[str, int], tokens: Sequence[str]
) -> tuple[StopToken, ...]:
    """The stop tokens by id: those `declared` as (source, id), and those of the `added` tokens with a known text.

    Ids beyond `tokens` can never be sampled and are left out.
    """
    known = END_TOKENS & added.keys()
    if "<|return|>" in known:
        # In the harmony format of gpt-oss <|end|> ends one of several messages of a reply.
        known -= {"<|end|>"}
    sources: dict[int, list[str]] = {}
    for source, token_id in [*declared, *(("its text", added[text]) for text in sorted(known))]:
        if 0 <= token_id < len(tokens) and source not in sources.setdefault(token_id, []):
            sources[token_id].append(source)
    return tuple(StopToken(i, tokens[i], tuple(names)) for i, names in sorted(sources.items()) if names)
