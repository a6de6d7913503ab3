"""A model's vocabulary as GGUF metadata describe it: texts, types and the tokens with a role.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section on the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import MetaValue, StringArray
from inference.pretokenizers import pre_tokenization

SPACE = "▁"  # what a space is written as in SentencePiece vocabularies


class TokenType(IntEnum):
    """The numbers in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


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
_ROLE_KEYS = ("eos", "eot", "eom")


@dataclass(frozen=True)
class Vocabulary:
    """`sentencepiece` tells the two kinds apart: SentencePiece BPE with scores, or byte-level BPE with merges.

    `types` is int32 (tokens,); `scores` float32 (tokens,), SentencePiece only; `merges` are the file's lines,
    "left right" in order of rank, byte-level only. `stop_ids` end a reply.
    """

    sentencepiece: bool
    tokens: Sequence[str]
    types: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32] | None
    merges: Sequence[str]
    pre: str
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    stop_ids: frozenset[int]

    @cached_property
    def control(self) -> dict[str, int]:
        """Tokens that are parsed in text only where the caller asks for it."""
        return self._of_types(TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def user_defined(self) -> dict[str, int]:
        """Tokens that are always found in text before anything is merged."""
        return self._of_types(TokenType.USER_DEFINED)

    def _of_types(self, *types: TokenType) -> dict[str, int]:
        return {self.tokens[i]: i for i in np.flatnonzero(np.isin(self.types, types)).tolist() if self.tokens[i]}

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text; not always whole characters. Control tokens give their own name."""
        text = self.tokens[token_id]
        match int(self.types[token_id]):
            case TokenType.BYTE:
                return bytes([int(text[3:5], 16)])  # <0xHH>
            case TokenType.NORMAL if self.sentencepiece:
                return text.replace(SPACE, " ").encode()
            case TokenType.NORMAL:
                return b"".join(BYTE_OF_CHAR[c] if c in BYTE_OF_CHAR else c.encode() for c in text)
        return text.encode()


def read_vocabulary(metadata: Mapping[str, MetaValue]) -> Vocabulary:
    """Reads the `tokenizer.ggml` keys. Raises UnsupportedModel for other kinds, BadModelFile where keys disagree."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {kind!r}, expected 'gpt2' (byte-level BPE) or 'llama' (SentencePiece BPE); "
            "use a model with one of these tokenizers"
        )
    sentencepiece = kind == "llama"
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, StringArray) or not len(texts):
        raise _wrong("tokens", "is not a list of strings", "the vocabulary")
    tokens = list(texts)
    types = _numbers(metadata, "token_type", len(tokens))
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    merges = metadata.get("tokenizer.ggml.merges")
    if not sentencepiece and not isinstance(merges, StringArray):
        raise _wrong("merges", "is not a list of strings", "the merges of the BPE vocabulary")
    bad_bytes = [t for i in np.flatnonzero(types == TokenType.BYTE).tolist() if not _is_byte_token(t := tokens[i])]
    if bad_bytes:
        raise _wrong("tokens", f"has the byte token {bad_bytes[0]!r}", "the form <0xHH>")
    ids = {role: _token_id(metadata, role, len(tokens)) for role in ("bos", "unknown", *_ROLE_KEYS)}
    add_bos = sentencepiece or pre_tokenization(pre).add_bos
    vocabulary = Vocabulary(
        sentencepiece=sentencepiece,
        tokens=tokens,
        types=types.astype(np.int32),
        scores=_numbers(metadata, "scores", len(tokens)).astype(np.float32) if sentencepiece else None,
        merges=list(merges) if isinstance(merges, StringArray) and not sentencepiece else [],
        pre=pre,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unknown_id=ids["unknown"],
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and ids["bos"] is not None,
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and ids["eos"] is not None,
        add_space_prefix=sentencepiece and bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        stop_ids=frozenset(),
    )
    added = vocabulary.control | vocabulary.user_defined
    named = {added[text] for text in END_TOKENS & added.keys()}
    declared = {i for role in _ROLE_KEYS if (i := ids[role]) is not None}
    return replace(vocabulary, stop_ids=frozenset(named | declared))


def _is_byte_token(text: str) -> bool:
    return re.fullmatch("<0x[0-9A-Fa-f]{2}>", text) is not None


def _numbers(metadata: Mapping[str, MetaValue], name: str, count: int) -> np.ndarray:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, np.ndarray) or len(values) != count:
        found = f"has {len(values)} entries" if isinstance(values, np.ndarray) else "is not a list of numbers"
        raise _wrong(name, found, f"one number for each of the {count} tokens")
    return values


def _token_id(metadata: Mapping[str, MetaValue], role: str, count: int) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < count:
        raise _wrong(f"{role}_token_id", f"is {token_id}", f"an id below {count}")
    return token_id


def _wrong(name: str, found: str, expected: str) -> BadModelFile:
    return BadModelFile(f"tokenizer.ggml.{name} {found}, expected {expected}; fetch the model file again")


def _byte_alphabet() -> dict[str, bytes]:
    """The characters that byte-level BPE writes bytes as (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 characters stand for their own code; all other bytes, in order, for characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): bytes([b]) for b in printable} | {chr(0x100 + i): bytes([b]) for i, b in enumerate(others)}


BYTE_OF_CHAR: Mapping[str, bytes] = _byte_alphabet()
