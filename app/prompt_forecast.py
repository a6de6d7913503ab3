"""What a message will take, in a few words: its tokens, those of its files, and how full the context will be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from app.theme import Look
from app.token_count import TokensCounted
from app.units import format_count

_NEARLY_FULL = 0.8  # from here on little room is left for the reply


def forecast(counted: TokensCounted, names: Sequence[str], context: int, look: Look) -> Text:
    """Such as `notes.txt 812 · 935 tokens · 2,001 of 8,192`; coloured, and said, where the context gets full."""
    text = Text()
    for name, tokens in zip(names, counted.files, strict=False):
        text.append(f"{name} {tokens:,} · ", look.accent)
    text.append(format_count(counted.text, "token"), look.muted)
    if counted.prompt is None or not context:
        return text
    share = counted.prompt / context
    warning = ", too long" if share >= 1 else ", nearly full" if share > _NEARLY_FULL else ""
    color = look.error if share >= 1 else look.warning if warning else look.muted
    return text.append(" · ").append(f"{counted.prompt:,} of {context:,}{warning}", color)
