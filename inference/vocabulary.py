"""A model's vocabulary, wherever it was read from: texts, types, and the tokens with a role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from inference.added_tokens import Matching
from inference.stop_tokens import StopToken

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SPACE = "▁"  # what a space is written as in SentencePiece vocabularies


class TokenType(IntEnum):
    """What a token is; the numbers are those of GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by id, and what becomes of them.

    `sentencepiece` tells how normal tokens are written: with ▁ for a space, or in the byte-level alphabet. `types` is
    int32 (tokens,) of TokenType; ids without a token (vocabularies are padded) are UNUSED. `prefix` and `suffix` are
    what the model wants around a text. `strips_space`: where encoding puts a space before a text, decoding takes one
    away. `matching` holds the added tokens that are not simply found wherever they are spelled. `named` holds texts
    of special tokens by the names that chat templates use, such as bos_token. `stops` end a reply.
    """

    sentencepiece: bool
    tokens: Sequence[str]
    types: npt.NDArray[np.int32]
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    strips_space: bool = False
    matching: Mapping[str, Matching] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    stops: tuple[StopToken, ...] = ()

    @cached_property
    def control(self) -> dict[str, int]:
        """Tokens that are parsed in text only where the caller asks for it."""
        return self._of_types(TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def user_defined(self) -> dict[str, int]:
        """Tokens that are always found in text before anything is merged."""
        return self._of_types(TokenType.USER_DEFINED)

    def _of_types(self, *types: TokenType) -> dict[str, int]:
        wanted = sum(self.types == kind for kind in types)
        return {self.tokens[i]: i for i in wanted.nonzero()[0].tolist() if self.tokens[i]}

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text; not always whole characters. Control tokens give their own name."""
        if not 0 <= token_id < len(self.tokens):
            return b""
        text = self.tokens[token_id]
        match int(self.types[token_id]):
            case TokenType.UNUSED:
                return b""
            case TokenType.BYTE:
                return bytes([int(text[3:5], 16)])  # <0xHH>
            case TokenType.NORMAL if self.sentencepiece:
                return text.replace(SPACE, " ").encode()
            case TokenType.NORMAL:
                return b"".join(BYTE_OF_CHAR[c] if c in BYTE_OF_CHAR else c.encode() for c in text)
        return text.encode()


def is_byte_token(text: str) -> bool:
    """Whether a token has the form <0xHH>, as SentencePiece writes bytes that no other token covers."""
    return re.fullmatch("<0x[0-9A-Fa-f]{2}>", text) is not None


def _byte_alphabet() -> dict[str, bytes]:
    """The characters that byte-level BPE writes bytes as (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 characters stand for their own code; all other bytes, in order, for characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): bytes([b]) for b in printable} | {chr(0x100 + i): bytes([b]) for i, b in enumerate(others)}


BYTE_OF_CHAR: Mapping[str, bytes] = _byte_alphabet()
