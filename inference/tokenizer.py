"""Text to token ids and back."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tokenizers

from inference.added_tokens import AddedTokens
from inference.formats.gguf import MetaValue
from inference.merger import Merger
from inference.stop_tokens import StopToken
from inference.tokenizer_files import read_tokenizer_folder
from inference.tokenizer_gguf import read_tokenizer_gguf
from inference.vocabulary import Vocabulary


class Tokenizer:
    """A vocabulary and the `tokenizers.Tokenizer` that merges ordinary text with it.

    Of the latter only normaliser, pre-tokeniser and model are used: added tokens are found before, by
    `inference.added_tokens`, so that the same text can be encoded with or without them. Ids equal those of the
    program that the file was made for: llama.cpp for GGUF, Transformers for tokenizer.json. One difference is meant:
    control tokens are found only as they are spelled, also where tokenizer.json would look in normalised text.
    """

    def __init__(self, vocabulary: Vocabulary, backend: tokenizers.Tokenizer) -> None:
        self.vocabulary = vocabulary
        self._merger = Merger(backend)
        how = vocabulary.matching
        normalized = {t for t in vocabulary.user_defined if t in how and how[t].normalized}
        raw = {text: i for text, i in vocabulary.user_defined.items() if text not in normalized}
        self._always = AddedTokens(raw, how)
        self._special = AddedTokens(raw | vocabulary.control, how)
        spelled = {self._merger.normalize(text): text for text in sorted(normalized)}
        self._normalized = AddedTokens(
            {text: vocabulary.user_defined[original] for text, original in spelled.items() if text},
            {text: how[original] for text, original in spelled.items()},
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, MetaValue], cache_folder: Path | None = None) -> Tokenizer:
        """The tokenizer that a GGUF file describes; what is slow to derive is kept in `cache_folder`.

        Raises UnsupportedModel for kinds and pre-tokenisers that are not known, BadModelFile where keys disagree.
        """
        return cls(*read_tokenizer_gguf(metadata, cache_folder))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder, from tokenizer.json and the files beside it.

        Raises ModelNotFound where there is none, UnsupportedModel for other kinds, BadModelFile for a damaged file.
        """
        return cls(*read_tokenizer_folder(folder))

    def with_stops(self, stops: tuple[StopToken, ...]) -> Tokenizer:
        """The same tokenizer, whose replies end at these tokens."""
        other = copy.copy(self)
        other.vocabulary = replace(self.vocabulary, stops=stops)
        return other

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        return self.vocabulary.eos_id

    @property
    def add_bos(self) -> bool:
        """Whether `add_special` puts the beginning-of-text token first."""
        return self.vocabulary.bos_id is not None and self.vocabulary.bos_id in self.vocabulary.prefix

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return frozenset(stop.id for stop in self.vocabulary.stops)

    def encode(
        self,
        text: str,
        add_special: bool = False,
        parse_special: bool = False,
        literals: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` adds the tokens that the model wants around a text. `parse_special` turns the names of control
        tokens into those tokens; without it they are ordinary text. `literals` maps single characters to text that
        takes their place and is never parsed, not even for tokens that are otherwise always found. Lone surrogates
        become U+FFFD; bytes that a byte-level vocabulary lacks (control characters, in some) are dropped.
        """
        restore = str.maketrans(dict(literals or {}))
        ids = list(self.vocabulary.prefix) if add_special else []
        at_start = True
        for piece in (self._special if parse_special else self._always).split(_whole(text)):
            ids += [piece] if isinstance(piece, int) else self._encode_ordinary(piece, restore, at_start)
            at_start = False
        return [*ids, *self.vocabulary.suffix] if add_special else ids

    def _encode_ordinary(self, text: str, restore: Mapping[int, str], at_start: bool) -> list[int]:
        """Ids of text without added tokens but those that are looked for in normalised text."""
        ids: list[int] = []
        for piece in self._normalized.split(self._merger.normalize(text)):
            ids += [piece] if isinstance(piece, int) else self._merger.encode(piece.translate(restore), at_start)
            at_start = False
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`, control tokens by name or left out; bytes that are not UTF-8 become U+FFFD."""
        if skip_special:
            control = set(self.vocabulary.control.values())
            ids = [i for i in ids if i not in control]
        text = b"".join(map(self.token_bytes, ids))
        return (text.removeprefix(b" ") if self.vocabulary.strips_space else text).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text; not always whole characters."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it, such as Ġthe or ▁the; empty for an id without a token."""
        tokens = self.vocabulary.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else ""


class StreamDecoder:
    """Decodes a growing list of ids: each `push` gives the text that is complete by then, never half a character.

    `begun` tells that the ids go on from a text, so that a space before the first one is part of it.
    """

    def __init__(self, tokenizer: Tokenizer, begun: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.vocabulary.strips_space and not begun

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty where it ends inside a character."""
        text = self._tokenizer.token_bytes(token_id)
        if self._strip and text:
            self._strip, text = False, text.removeprefix(b" ")
        return self._decoder.decode(text)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished. The decoder can be used again."""
        self._strip = self._tokenizer.vocabulary.strips_space
        return self._decoder.decode(b"", final=True)


def ids_that_spell(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int] | None:
    """The first of `ids`, as many as give exactly `text`; None where they give another one."""
    decoder, at = StreamDecoder(tokenizer), 0
    for index, token_id in enumerate(ids):
        if at == len(text):
            return list(ids[:index])
        piece = decoder.push(token_id)
        if not text.startswith(piece, at):
            return None
        at += len(piece)
    return list(ids) if text[at:] == decoder.flush() else None


def _whole(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
