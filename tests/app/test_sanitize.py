from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from app.sanitize import Sanitizer, visible

BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def acts_on_the_terminal(character: str) -> bool:
    return (unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t") or character in BIDI


hostile = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[]\r\n\t\x9b\x07\x7f\u202e\u200d")))


@given(hostile)
def test_nothing_that_acts_on_the_terminal_is_left(text: str) -> None:
    assert not [character for character in visible(text) if acts_on_the_terminal(character)]


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"])) | st.sampled_from(["a\tb\nc", "日本 👩‍👩‍👧 é"]))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert visible(text) == text


@given(hostile, st.lists(st.integers(min_value=0, max_value=40), max_size=6))
def test_pieces_give_what_the_whole_gives(text: str, cuts: list[int]) -> None:
    border, shown, start = Sanitizer(), "", 0
    for cut in sorted(cuts):
        shown += border.feed(text[start:cut])
        start = max(start, cut)
    shown += border.feed(text[start:]) + border.flush()
    assert shown == visible(text)


def test_escapes_are_shown() -> None:
    assert visible("\x1b[31mred\x07\r") == "␛[31mred␇␍"
    assert visible("a\r\nb") == "a\nb"
    assert visible("\x9bm \x7f") == "⟨9B⟩m ␡"
    assert visible("abc\u202edef") == "abc⟨U+202E⟩def"


def test_joiners_stay_where_they_join() -> None:
    assert visible("👩\u200d👧 a\u200d b\u200d") == "👩\u200d👧 a⟨U+200D⟩ b⟨U+200D⟩"
