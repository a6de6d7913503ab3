"""Characters as people see them, in the text area: cursor, deletion, wrapping, clicks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import regex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.widgets.text_area import Selection

from app.graphemes import break_points, cluster_cells, cluster_starts
from app.widgets.cluster_area import ClusterArea

FAMILY, FLAG, ACCENTED, JAMO, HEART = "👨‍👩‍👧‍👦", "🇩🇪", "e\u0301", "\u1100\u1161\u11a8", "❤️"
HEBREW, HINDI, CJK, THUMB, ENGLAND = (
    "שָׁלוֹם",
    "नमस्ते",
    "日本語",
    "👍🏽",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
)
CLUSTERS = ["a", " ", "字", FAMILY, FLAG, ACCENTED, JAMO, HEART, THUMB, ENGLAND, "שָׁ", "\t", "x"]
TEXTS = st.lists(st.sampled_from([*CLUSTERS, "\u0301", "\u200d", "\ufe0f", "👩"]), max_size=24).map("".join)


@asynccontextmanager
async def area(text: str) -> AsyncIterator[ClusterArea]:
    class Host(App[None]):
        def compose(self) -> ComposeResult:
            yield ClusterArea(text)

    app = Host()
    async with app.run_test(size=(20, 8)):
        yield app.query_one(ClusterArea)


def sections(line: str, width: int) -> list[str]:
    return [line[a:b] for a, b in pairwise([0, *break_points(line, width, 4), len(line)])]


@pytest.mark.parametrize("cluster", [FAMILY, FLAG, ACCENTED, JAMO, HEART, THUMB, ENGLAND])
async def test_one_key_takes_a_whole_character(cluster: str) -> None:
    async with area(f"a{cluster}b") as box:
        box.move_cursor((0, 1 + len(cluster)))
        box.action_cursor_left()
        assert box.cursor_location == (0, 1)
        box.action_cursor_right(select=True)
        assert box.selected_text == cluster
        box.move_cursor((0, 1 + len(cluster)))
        box.action_delete_left()
        assert box.text == "ab"
        box.undo()
        box.move_cursor((0, 1))
        box.action_delete_right()
        assert box.text == "ab"


async def test_the_cursor_is_never_inside_a_character() -> None:
    async with area(f"{FAMILY}{ACCENTED}\n{CJK}{HEBREW}{HINDI}") as box:
        for row in (0, 1):
            edges = set(cluster_starts(box.document[row]))
            for column in range(len(box.document[row]) + 1):
                box.move_cursor((row, column))
                assert box.cursor_location[1] in edges
        box.move_cursor((0, 0))
        seen = []
        while box.cursor_location != box.document.end:
            box.action_cursor_word_right()
            assert box.cursor_location not in seen  # it gets on
            seen.append(box.cursor_location)


async def test_a_cell_on_the_screen_is_a_place_in_the_text() -> None:
    async with area(f"{FAMILY}{HEART}字x") as box:
        columns = [box.wrapped_document.get_target_document_column(0, x, 0) for x in range(8)]
        starts = [0, len(FAMILY), len(FAMILY) + len(HEART), len(FAMILY) + len(HEART) + 1]
        assert columns == [0, 0, starts[1], starts[1], starts[2], starts[2], starts[3], starts[3] + 1]


async def test_the_cursor_lies_over_the_whole_character_in_one_piece() -> None:
    async with area(f"a{FAMILY}b") as box:
        box.focus()
        box.cursor_blink = False
        box.move_cursor((0, 1))
        box.render_lines(box.region.reset_offset)
        assert [segment.text for segment in box.render_line(0)][:2] == ["a", FAMILY]
        box.selection = Selection((0, len(box.text)), (0, 1))
        assert [segment.text for segment in box.render_line(0)][:3] == ["a", FAMILY, "b"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.integers(2, 12))
def test_wrapping_loses_nothing_and_tears_nothing(text: str, width: int) -> None:
    parts = sections(text, width)
    assert "".join(parts) == text
    clusters = {match.start() for match in regex.finditer(r"\X", text)}
    assert set(break_points(text, width, 4)) <= clusters
    for start, part in zip([0, *break_points(text, width, 4)], parts, strict=True):
        cells = sum(size for at, size in cluster_cells(text, 4) if start <= at < start + len(part))
        assert cells <= width or len(regex.findall(r"\X", part)) == 1


def test_lines_are_broken_between_words_first() -> None:
    assert sections("hello world foo bar", 8) == ["hello ", "world ", "foo bar"]
    assert sections(CJK * 2, 5) == ["日本", "語日", "本語"]
    assert [cell_len(part) for part in sections(HEART * 5, 5)] == [4, 4, 2]


async def test_deleting_takes_as_many_keys_as_there_are_characters() -> None:
    texts = ["", FAMILY + ACCENTED, f"{HEBREW} {HINDI}", f"{FLAG}{FLAG}", f"a\n{THUMB}\n{CJK}", "\u200d\u0301x"]

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    async with area("") as box:
        for text in texts:
            box.load_text(text)
            box.move_cursor(box.document.end)
            expected = regex.findall(r"\X", text)
            while expected:
                expected.pop()
                box.action_delete_left()
                assert box.text == "".join(expected)
