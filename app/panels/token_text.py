"""Tokens as a person sees them, one by one."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from app.sanitize import visible
from inference.vocabulary import Vocabulary

_MARKS = str.maketrans({"\n": "↵", "\t": "⇥"})
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class TokenTexts:
    """What each of a row of tokens shows: the characters that it completes, or its bytes where it completes none.

    Nothing in it acts on a terminal, and none is without width.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> list[str]:
        """The texts of the next tokens."""
        return [self._text(id) for id in ids]

    def _text(self, id: int) -> str:
        data = self._vocabulary.token_bytes(id)
        shown = _shown(self._decoder.decode(data))
        return shown if cell_len(shown) else hex_bytes(data)


def _shown(text: str) -> str:
    return visible(text).translate(_MARKS)


def hex_bytes(data: bytes) -> str:
    """ "⟨E2 82⟩" for two bytes."""
    return f"⟨{data.hex(' ').upper()}⟩"


def one_token(vocabulary: Vocabulary, id: int) -> str:
    """What a token shows by itself, in quotes: its spaces count."""
    data = vocabulary.token_bytes(id)
    shown = _shown(data.decode("utf-8", "replace"))
    return f"“{shown}”" if cell_len(shown) and "\ufffd" not in shown else hex_bytes(data)


def subscript(number: int) -> str:
    """A number in small digits, which nothing takes for text of the token before it."""
    return str(number).translate(_SUBSCRIPTS)


class TokenFlow:
    """Lines of tokens: as many as fit into `width` cells, and a new line after one that has a line break.

    A token is never divided; one that is wider than a line has a line of its own, and is cut where it is drawn.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.starts: list[int] = []
        """The first token of each line."""
        self._tokens = 0
        self._used = 0
        self._new_line = True

    def push(self, texts: Sequence[str]) -> None:
        """Lay out the next tokens."""
        for text in texts:
            cells = cell_len(text)
            if self._new_line or self._used + cells > self.width:
                self.starts.append(self._tokens)
                self._used = 0
            self._used += cells
            self._new_line = "↵" in text
            self._tokens += 1

    def tokens(self, line: int) -> range:
        """The tokens of a line."""
        end = self.starts[line + 1] if line + 1 < len(self.starts) else self._tokens
        return range(self.starts[line], end)
