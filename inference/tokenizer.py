"""Text to token ids and back, for the two kinds of vocabulary that GGUF files carry."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import models

from inference.added_tokens import AddedTokens
from inference.errors import BadModelFile
from inference.formats.gguf import MetaValue
from inference.pretokenizers import pre_tokenization
from inference.sentencepiece import as_text_pairs, cached_merges
from inference.vocabulary import SPACE, Vocabulary, read_vocabulary


class Tokenizer:
    """A vocabulary and the `tokenizers.Tokenizer` that merges ordinary text with it.

    The latter knows no added tokens: these are found first, by `inference.added_tokens`, so that the same text can
    be encoded with or without them. Ids equal llama.cpp's for the same file and flags.
    """

    def __init__(self, vocabulary: Vocabulary, backend: tokenizers.Tokenizer) -> None:
        self.vocabulary = vocabulary
        self._backend = backend
        self._always = AddedTokens(vocabulary.user_defined)
        self._special = AddedTokens(vocabulary.user_defined | vocabulary.control)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, MetaValue], cache_folder: Path | None = None) -> Tokenizer:
        """Builds the tokenizer that a GGUF file describes; what is slow to derive is kept in `cache_folder`.

        Raises UnsupportedModel for kinds and pre-tokenisers that are not known, BadModelFile where keys disagree.
        """
        vocabulary = read_vocabulary(metadata)
        if vocabulary.sentencepiece:
            return cls(vocabulary, _sentencepiece(vocabulary, cache_folder))
        return cls(vocabulary, _byte_level(vocabulary))

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
        return self.vocabulary.add_bos

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return self.vocabulary.stop_ids

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
        vocabulary = self.vocabulary
        restore = str.maketrans(dict(literals)) if literals else None
        ids = [vocabulary.bos_id] if add_special and vocabulary.add_bos and vocabulary.bos_id is not None else []
        at_start = True
        for piece in (self._special if parse_special else self._always).split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._merge(piece.translate(restore) if restore else piece, at_start)
            at_start = isinstance(piece, int)
        if add_special and vocabulary.add_eos and vocabulary.eos_id is not None:
            ids.append(vocabulary.eos_id)
        return ids

    def _merge(self, text: str, at_start: bool) -> list[int]:
        """Ids of text without added tokens. SentencePiece models may want a space before a text's first word."""
        if self.vocabulary.sentencepiece:
            prefix = SPACE if at_start and self.vocabulary.add_space_prefix else ""
            text = prefix + text.replace(" ", SPACE)
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):
            whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return self._backend.encode(whole, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens by name; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text; not always whole characters."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it, such as Ġthe or ▁the."""
        return self.vocabulary.tokens[token_id]


class StreamDecoder:
    """Decodes a growing list of ids: each `push` gives the text that is complete by then, never half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty where it ends inside a character."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished. The decoder can be used again."""
        return self._decoder.decode(b"", final=True)


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE. It is quick to build, so nothing is cached."""
    merges = [tuple(line.split(" ")) for line in vocabulary.merges]
    if any(len(pair) != 2 for pair in merges):
        raise BadModelFile("tokenizer.ggml.merges has a line that is not two tokens; fetch the model file again")
    pre = pre_tokenization(vocabulary.pre)
    backend = _backend(vocabulary, merges, ignore_merges=pre.whole_words)
    backend.pre_tokenizer = pre.build()
    return backend


def _sentencepiece(vocabulary: Vocabulary, cache_folder: Path | None) -> tokenizers.Tokenizer:
    merges = as_text_pairs(cached_merges(vocabulary, cache_folder), vocabulary.tokens)
    unknown = {} if vocabulary.unknown_id is None else {"unk_token": vocabulary.tokens[vocabulary.unknown_id]}
    return _backend(vocabulary, merges, byte_fallback=True, fuse_unk=True, **unknown)


def _backend(vocabulary: Vocabulary, merges: list, **options: object) -> tokenizers.Tokenizer:
    """Control tokens are left out, so that no text can be merged into one."""
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    for text, token_id in vocabulary.control.items():
        if token_id != vocabulary.unknown_id or not vocabulary.sentencepiece:
            del ids[text]
    try:
        return tokenizers.Tokenizer(models.BPE(ids, merges, **options))
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"tokenizer.ggml.merges do not fit the vocabulary ({error}); fetch the file again") from None
