"""Stop strings: nothing of one is ever released, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.stops import StopStrings

stops = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)
pieces = st.lists(st.text("ab ", max_size=4), max_size=12)


def released(watched: tuple[str, ...], parts: list[str]) -> tuple[list[str], str, bool]:
    """(what each push released, what the flush released, whether a stop string ended it)."""
    watcher = StopStrings(watched)
    texts = []
    for part in parts:
        release = watcher.push(part)
        texts.append(release.text)
        if release.stopped:
            return texts, "", True
    return texts, watcher.flush(), False


def plain(watched: tuple[str, ...], text: str) -> tuple[str, bool]:
    """The text before the stop string that is complete first, read letter by letter."""
    for end in range(len(text) + 1):
        complete = [stop for stop in watched if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(stops, pieces)
def test_any_split_gives_the_text_before_the_stop_string(watched: tuple[str, ...], parts: list[str]) -> None:
    texts, flushed, stopped = released(watched, parts)
    assert ("".join(texts) + flushed, stopped) == plain(watched, "".join(parts))


@given(stops, pieces)
def test_no_part_of_a_stop_string_is_released(watched: tuple[str, ...], parts: list[str]) -> None:
    texts, _, _ = released(watched, parts)
    for count in range(1, len(texts) + 1):
        shown, read = "".join(texts[:count]), "".join(parts[:count])
        # Whatever came next, what is shown by now stays the beginning of what is shown in the end.
        for stop in watched:
            for missing in range(len(stop)):
                if read.endswith(stop[:missing]):
                    assert plain(watched, read + stop[missing:])[0].startswith(shown)


@given(stops, pieces)
def test_no_more_is_held_back_than_a_stop_string_less_a_letter(watched: tuple[str, ...], parts: list[str]) -> None:
    texts, flushed, _ = released(watched, parts)
    assert len(flushed) < max(map(len, watched))
    watcher = StopStrings(watched)
    for index, part in enumerate(parts):
        if watcher.push(part).stopped:
            return
        held = "".join(parts[: index + 1])[len("".join(texts[: index + 1])) :]
        assert held == "" or any(stop.startswith(held) for stop in watched)


@pytest.mark.parametrize("watched", [(), ("",)])
def test_without_stop_strings_everything_passes_at_once(watched: tuple[str, ...]) -> None:
    assert released(watched, ["a", "", "b"]) == (["a", "", "b"], "", False)


def test_a_stop_string_over_several_pieces() -> None:
    assert released(("\n\nUser:",), ["Yes.", "\n", "\n", "Us", "er", ": hello"]) == (
        ["Yes.", "", "", "", "", ""],
        "",
        True,
    )
    assert released(("\n\nUser:",), ["Yes.", "\n", "\n", "Us", "ual"]) == (["Yes.", "", "", "", "\n\nUsual"], "", False)


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert released(("end", "the end"), ["this is the end", "."]) == (["this is "], "", True)
