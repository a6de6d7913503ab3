"""Ordinary text to ids: the part of encoding that the `tokenizers` library does."""

from __future__ import annotations

import tokenizers
from tokenizers import pre_tokenizers


class Merger:
    """The normaliser, pre-tokeniser and model of a tokenizer, without its added tokens.

    The library runs these on each stretch of text between added tokens. One rule depends on what came before: a
    pre-tokeniser with the prepend scheme "first" puts a space before the beginning of the whole text only.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._normalizer = backend.normalizer
        self._first = self._later = tokenizers.Tokenizer(backend.model)
        if backend.pre_tokenizer is not None:
            self._first.pre_tokenizer = backend.pre_tokenizer
            state = backend.pre_tokenizer.__getstate__()
            later = state.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
            if later != state:
                self._later = tokenizers.Tokenizer(backend.model)
                self._later.pre_tokenizer = _from_state(later)

    def normalize(self, text: str) -> str:
        """The text as the model wants it written."""
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def encode(self, text: str, at_start: bool) -> list[int]:
        """Ids of normalised text; `at_start` where it begins the whole."""
        # As a batch, since only that lets other threads run: a megabyte takes a second.
        backend = self._first if at_start else self._later
        return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _from_state(state: bytes) -> pre_tokenizers.PreTokenizer:
    made = pre_tokenizers.Sequence([])
    made.__setstate__(state)
    return made
