"""Finding a vocabulary's added tokens, such as <|im_start|>, in text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class AddedTokens:
    """Splits text at a set of token texts: the leftmost match, of several there the longest.

    Candidates are found by their first character, so that thousands of tokens cost no more than a few.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile("[" + re.escape("".join(self._lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yields the text in order: strings without any of the tokens, never empty, and ids."""
        start = position = 0
        while self._first is not None and (candidate := self._first.search(text, position)):
            position = candidate.start()
            for length in self._lengths[text[position]]:
                token_id = self._ids.get(text[position : position + length])
                if token_id is not None:
                    if start < position:
                        yield text[start:position]
                    yield token_id
                    start = position = position + length
                    break
            else:
                position += 1
        if start < len(text):
            yield text[start:]
