"""Cuts growing Markdown into blocks: those that are finished, and the last, which may still change.

Each block is rendered on its own, so that a long reply costs no more per token than a short one. A list is cut
between its items, a long fence between its lines, a long table between its rows, and a very long paragraph where no
markup is open. Parsing what nests ever deeper takes more time the longer it is: where a block grows very long and has
no place to be cut, what there is of it is shown as it was written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.widgets.code import lexer_for, may_cut_after

# Raw HTML and link definitions stay text: nothing of a reply is dropped.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")
_PLAIN = MarkdownIt("zero")  # paragraphs of text

_CODE_LINES = 40  # a growing fence is cut when it is longer
_CODE_LINES_HARD = 300  # and then even inside a string or comment
_PARAGRAPH_CHARS = 3000  # a growing paragraph is cut when it is longer
_PARAGRAPH_CHARS_HARD = 6000  # and then even where markup may be open
_TABLE_ROWS = 60  # a growing table is cut when it has more, and its header repeated
_PIECE_CHARS = 2000
_CHARS_HARD = 16_000  # a growing block that is longer and cannot be cut is finished
_PARAGRAPH_KEEP = 400


@dataclass(frozen=True)
class Block:
    """A piece of a reply that is rendered alone.

    `source` is Markdown, or for `code` the bare code. `gap` asks for an empty line above. `number` is the number of
    an ordered list's item. `joined` says that the block goes on from the one before it: for code without a label of
    its own, for prose on the same line after that separator. `open_end` says that another will be joined to it.
    `plain` prose is text as it is.
    """

    kind: Literal["prose", "item", "code"]
    source: str
    gap: bool = True
    language: str = ""
    number: int | None = None
    joined: str | None = None
    open_end: bool = False
    plain: bool = False


def parse(source: str, plain: bool = False) -> list[Token]:
    """The tokens of `source`. Line breaks inside a paragraph are kept: models write verse and addresses with them."""
    tokens = (_PLAIN if plain else _PARSER).parse(source)
    for token in tokens:
        # An address in angle brackets is its own text; as a link it would be shown twice.
        token.children = [child for child in token.children or () if child.markup != "autolink"] or None
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return tokens


@dataclass(frozen=True)
class _Located:
    """A block, with the lines of the source that it covers (end excluded)."""

    block: Block
    start: int
    end: int


class MarkdownStream:
    """Turns pieces of text into blocks. `growing` holds the blocks that may still change.

    `gap` asks for an empty line above the first.
    """

    def __init__(self, gap: bool = False) -> None:
        self._tail = ""
        self._next = Block("prose", "", gap=gap)  # how the first block of the tail begins
        self.growing: tuple[Block, ...] = ()

    def feed(self, text: str, ended: bool = False) -> list[Block]:
        """Add `text`; returns the blocks that are now finished. With `ended`, all are, and `growing` is empty."""
        self._tail += text
        located = self._locate(parse(self._tail))
        lines = self._tail.split("\n")
        count = len(located) if ended else _finished(located, lines)
        done = [item.block for item in located[:count]]
        rest = located[count:]
        if done:
            following = rest[0] if rest else None
            self._tail = "\n".join(lines[following.start :]) if following else ""
            self._next = replace(following.block, source="") if following else Block("prose", "")
        if not located:
            self._tail = lines[-1]
        if len(rest) == 1 and (cut := self._cut_long(rest[0])):
            done += cut
            rest = self._locate(parse(self._tail))
        self.growing = tuple(item.block for item in rest)
        return done

    def _locate(self, tokens: list[Token]) -> list[_Located]:
        """The blocks of the tail, the first of them beginning as `_next` says."""
        lines = self._tail.split("\n")
        found: list[_Located] = []
        starts = [i for i, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        for begin, end in pairwise([*starts, len(tokens)]):
            token = tokens[begin]
            assert token.map is not None
            first, last = token.map
            if token.type in ("bullet_list_open", "ordered_list_open"):
                found += self._items(tokens[begin:end], lines, continued=not found and self._next.kind == "item")
            elif token.type == "fence":
                code = token.content.removesuffix("\n")
                found.append(_Located(Block("code", code, language=token.info.strip()), first, last))
            else:
                found.append(_Located(Block("prose", "\n".join(lines[first:last])), first, last))
        if found:
            head = found[0].block
            same = head.kind == self._next.kind
            joined = self._next.joined if same else None
            found[0] = replace(found[0], block=replace(head, gap=self._next.gap, joined=joined))
        return found

    def _items(self, tokens: list[Token], lines: list[str], continued: bool) -> list[_Located]:
        number: int | None = None
        if tokens[0].type == "ordered_list_open":
            number = int(tokens[0].attrs.get("start", 1))
            if continued and self._next.number is not None:
                number = self._next.number
        found: list[_Located] = []
        for token in tokens:
            if token.type != "list_item_open" or token.level != 1 or token.map is None:
                continue
            first, last = token.map
            gap = not found or not lines[first - 1].strip()
            block = Block("item", "\n".join(lines[first:last]), gap=gap, number=number)
            found.append(_Located(block, first, last))
            number = None if number is None else number + 1
        return found

    def _cut_long(self, last: _Located) -> list[Block]:
        """Cut off the settled part of a growing block that has become long; the tail keeps the rest."""
        block, lines = last.block, self._tail.split("\n")
        if block.kind == "code":
            code = block.source.split("\n")
            if len(code) > _CODE_LINES and (cut := _code_cut(code, block.language)):
                done, rest = "\n".join(code[:cut]), "\n".join(lines[last.start + 1 + cut :])
            elif len(block.source) > _CHARS_HARD:
                end = max(block.source.rfind("\n", 0, _CHARS_HARD), 0) or _CHARS_HARD
                done, rest = block.source[:end], block.source[end:].removeprefix("\n")
            else:
                return []
            self._tail = f"{lines[last.start]}\n{rest}"
            self._next = replace(block, source="", gap=False, joined="")
            return [replace(block, source=done)]
        paragraph = block.kind == "prose" and len(block.source) > _PARAGRAPH_CHARS and _is_paragraph(block.source)
        if paragraph:
            cut, separator = _paragraph_cut(block.source)
            if cut:
                self._tail = self._tail[self._tail.index(block.source) + cut + len(separator) :]
                self._next = Block("prose", "", gap=False, joined=separator)
                return [replace(block, source=block.source[:cut], open_end=True)]
        if block.kind == "prose" and (rows := _table_rows(block.source)) > _TABLE_ROWS:
            table = block.source.split("\n")
            self._tail = "\n".join([*table[:2], *lines[last.start + 1 + rows :]])
            self._next = Block("prose", "", gap=False)
            return [replace(block, source="\n".join(table[: 1 + rows]))]
        if len(block.source) > (_PARAGRAPH_CHARS_HARD if paragraph else _CHARS_HARD):
            self._tail, self._next = "", Block("prose", "", gap=False)
            return [replace(block, kind="prose", plain=True)]
        return []


def feed_all(stream: MarkdownStream, text: str, ended: bool) -> Iterator[Block]:
    """Feed text of any length as if it grew, so that it is cut where it would be then."""
    for start in range(0, max(len(text), 1), _PIECE_CHARS):
        yield from stream.feed(text[start : start + _PIECE_CHARS], ended and start + _PIECE_CHARS >= len(text))


def _finished(located: list[_Located], lines: list[str]) -> int:
    """How many blocks can no longer change: a later one begins below, on a line that is complete.

    Until that line is complete it may turn out to belong above: `#` alone begins a heading, `#tag` does not.
    """
    for index in range(len(located) - 1, 0, -1):
        start = located[index].start
        if start < len(lines) - 1 or not lines[start - 1].strip():
            return index
    return 0


def _code_cut(code: list[str], language: str) -> int:
    """The number of lines that can be highlighted apart from those below; 0 if no such place is found yet."""
    text = "\n".join(code)
    newline, best = 0, 0
    for _, kind, value in lexer_for(language).get_tokens_unprocessed(text):
        for _ in range(value.count("\n")):
            newline += 1
            if newline > len(code) - 2:
                break
            following = code[newline]
            if may_cut_after(kind) and following[:1] not in ("", " ", "\t", ")", "]", "}"):
                best = newline
    return best or (len(code) - 2 if len(code) > _CODE_LINES_HARD else 0)


def _table_rows(source: str) -> int:
    """How many rows a table has below its header; 0 for what is no table."""
    lines = source.split("\n", 2)
    if len(lines) < 3 or not lines[1].strip().startswith(("|", ":", "-")) or lines[2].count("\n") < _TABLE_ROWS:
        return 0
    return sum(token.type == "tr_open" for token in _PARSER.parse(source)) - 1


def _is_paragraph(source: str) -> bool:
    tokens = _PARSER.parse(source)
    return len(tokens) == 3 and tokens[0].type == "paragraph_open"


def _paragraph_cut(source: str) -> tuple[int, str]:
    """Where to cut a long paragraph, and the separator there; (0, "") if everywhere some markup is open.

    The rest must begin with a letter, so that it cannot be taken for a list, a heading or a quote.
    """
    limit = len(source) - _PARAGRAPH_KEEP
    hard = len(source) > _PARAGRAPH_CHARS_HARD
    for position in range(limit, limit // 2, -1):
        if source[position] in " \n" and source[position + 1].isalpha() and (hard or _balanced(source[:position])):
            return position, source[position]
    for position in range(limit, limit // 2, -1):  # scripts that write without spaces
        letters = source[position - 1].isalpha() and source[position].isalpha()
        if letters and not unicodedata.combining(source[position]) and (hard or _balanced(source[:position])):
            return position, ""
    return 0, ""


def _balanced(text: str) -> bool:
    return all(text.count(mark) % 2 == 0 for mark in "`*_~") and text.count("[") == text.count("]")
