"""Finding a vocabulary's added tokens, such as <|im_start|>, in text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SPACES = re.compile(r"\s*")
_WORD_CATEGORIES = ("L", "M", "Nd", "Nl", "Pc")  # of characters in words, as Unicode's regular expressions have it


@dataclass(frozen=True)
class Matching:
    """How a token is found, as in tokenizer.json.

    `lstrip` and `rstrip` take the white space on that side along; `single_word` finds it only where no word
    character touches it; `normalized` looks for it in normalised text.
    """

    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


PLAIN = Matching()


class AddedTokens:
    """Splits text at a set of token texts: the leftmost match, of several there the longest.

    Candidates are found by their first character, so that thousands of tokens cost no more than a few. Tokens that
    are not in `matching` are found wherever their text is.
    """

    def __init__(self, ids: Mapping[str, int], matching: Mapping[str, Matching] | None = None) -> None:
        self._ids = dict(ids)
        self._matching = dict(matching or {})
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile("[" + re.escape("".join(self._lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yields the text in order: strings without any of the tokens, never empty, and ids."""
        done = position = 0
        while self._first is not None and (candidate := self._first.search(text, position)):
            start = candidate.start()
            token = next((t for n in self._lengths[text[start]] if (t := text[start : start + n]) in self._ids), None)
            if token is None:
                position = start + 1
                continue
            position = end = start + len(token)
            how = self._matching.get(token, PLAIN)
            if how.single_word and (_is_word(text[end : end + 1]) or (start and _is_word(text[start - 1]))):
                continue
            if how.lstrip:
                start = done + len(text[done:start].rstrip())
            if how.rstrip:
                end = _end_of_spaces(text, end)  # a token within these spaces is found all the same
            if done < start:
                yield text[done:start]
            if start < end:
                yield self._ids[token]
            done = end
        if done < len(text):
            yield text[done:]


def _is_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character).startswith(_WORD_CATEGORIES)


def _end_of_spaces(text: str, start: int) -> int:
    found = _SPACES.match(text, start)
    return start if found is None else found.end()
