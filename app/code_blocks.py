"""The code blocks of a reply, as they are copied."""

from __future__ import annotations

from dataclasses import dataclass

from app.widgets.markdown_blocks import parse


@dataclass(frozen=True)
class CodeBlock:
    """Code without its fence; `language` is what the fence names, "" for nothing."""

    language: str
    code: str


def code_blocks(markdown: str) -> list[CodeBlock]:
    """All code blocks, also those in lists and quotes, in order."""
    tokens = (token for token in parse(markdown) if token.type in ("fence", "code_block"))
    return [CodeBlock(token.info.strip().partition(" ")[0], token.content) for token in tokens]
