from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from app.theme import make_look
from app.widgets.markdown_blocks import Block, MarkdownStream, feed_all
from app.widgets.render import lay_out

LOOK = make_look({})

DOCUMENT = """# Title

A paragraph with **bold**, `code` and [a link](http://example.org)
whose second line is kept. <b>HTML</b> stays.

- one
- two
  more of two

1. first

   ```python
   x = 1
   ```
2. second

> a quote
> of two lines

| a | b |
|---|--:|
| 1 | 22 |

```python
def hello():
\treturn "x"
```

---

日本語 and 👩‍👩‍👧 at the end
#tag
"""


def stream(text: str, size: int) -> list[Block]:
    blocks, markdown = [], MarkdownStream()
    for start in range(0, len(text), size):
        blocks += markdown.feed(text[start : start + size])
    return [*blocks, *markdown.feed("", ended=True)]


def shown(blocks: list[Block], width: int = 80) -> str:
    lines, carry = [], None
    for block in blocks:
        laid = lay_out(block, width, LOOK, carry)
        carry = laid.carry
        lines += [strip.text.rstrip() for strip in laid.strips]
    return "\n".join(lines) + ("\n" + carry.plain if carry else "")


def words(text: str) -> list[str]:
    return text.split()


def test_pieces_of_any_size_give_the_same_lines() -> None:
    whole = shown(stream(DOCUMENT, len(DOCUMENT)))
    for size in (1, 2, 3, 7, 64):
        assert shown(stream(DOCUMENT, size)) == whole


def test_the_document_is_laid_out_as_markdown() -> None:
    text = shown(stream(DOCUMENT, 5))
    assert "A paragraph with bold, code and a link (http://example.org)\n  whose second line is kept. <b>HTML" in text
    assert "  • one\n  • two\n    more of two\n" in text
    assert "  1. first\n" in text and "  2. second" in text
    assert "  ▌ a quote\n  ▌ of two lines" in text
    assert '   python\n   def hello():\n       return "x"' in text
    assert "日本語 and 👩‍👩‍👧 at the end\n  #tag" in text


def test_a_heading_sign_is_not_taken_for_a_heading_before_its_line_is_complete() -> None:
    assert [block.source for block in stream("text\n#tag\n", 1)] == ["text\n#tag"]


def test_a_long_fence_is_cut_into_finished_pieces_and_loses_nothing() -> None:
    code = "\n".join(f"def f{i}():\n    '''text\n\n\n    more'''\n    return {i}" for i in range(100))
    markdown, done = MarkdownStream(), []
    for line in f"```python\n{code}\n".splitlines(keepends=True):
        done += markdown.feed(line)
        assert sum(block.source.count("\n") for block in markdown.growing) < 60
    done += markdown.feed("```\n\nafter", ended=True)
    assert "\n".join(block.source for block in done if block.kind == "code") == code
    assert [block.joined for block in done if block.kind == "code"] == [None] + [""] * (len(done) - 2)
    # Cut only where a line begins anew, never inside a string.
    assert all(block.source.startswith("def ") for block in done if block.kind == "code")
    assert done[-1].source == "after"


def test_a_long_paragraph_is_cut_without_a_seam() -> None:
    text = " ".join(f"word{i}" if i % 9 else f"**bold {i}**" for i in range(4000))
    blocks = stream(text, 50)
    assert len(blocks) > 5
    assert max(len(block.source) for block in blocks) < 4000
    assert words(shown(blocks)) == words(shown(stream(text, len(text))))
    whole = lay_out(Block("prose", text, gap=False), 80, LOOK)
    assert shown(blocks) == "\n".join(strip.text.rstrip() for strip in whole.strips)


def test_a_long_text_without_spaces_is_cut_too() -> None:
    text = "日本語の文章" * 2000
    blocks = stream(text, 40)
    assert len(blocks) > 2
    assert "".join(words(shown(blocks))) == text


def test_a_lone_sign_does_not_keep_a_paragraph_growing() -> None:
    text = "two * three is six. " + "word " * 6000
    blocks = stream(text, 100)
    assert max(len(block.source) for block in blocks) < 9000
    assert words(shown(blocks)) == words(text)


def test_a_long_list_is_finished_item_by_item_and_keeps_its_numbers() -> None:
    text = "".join(f"{i}. item\n" for i in range(1, 300))
    markdown, done = MarkdownStream(), []
    for start in range(0, len(text), 11):
        done += markdown.feed(text[start : start + 11])
        assert len(markdown.growing) < 5
    done += markdown.feed("", ended=True)
    assert [block.number for block in done] == list(range(1, 300))
    assert not any(block.gap for block in done)


def test_lazily_numbered_items_count_up() -> None:
    assert [block.number for block in stream("1. a\n1. b\n1. c\n1. d\n", 1)] == [1, 2, 3, 4]


markdown_text = st.text(alphabet=st.sampled_from("ab1 \n\n*_`#>-~[]().:!\t\\<&日👩‍é"), max_size=120)


@settings(max_examples=150, deadline=None)
@given(markdown_text, st.integers(1, 9), st.sampled_from([12, 40, 100]))
def test_any_text_in_any_pieces_keeps_its_letters_and_its_width(text: str, size: int, width: int) -> None:
    blocks = stream(text, size)
    carry: Text | None = None
    for block in blocks:
        laid = lay_out(block, width, LOOK, carry)
        carry = laid.carry
        assert all(strip.cell_length == width for strip in laid.strips)
        assert not any("\t" in strip.text or "\n" in strip.text for strip in laid.strips)
    letters = "ab日é"
    before = Counter(character for character in text if character in letters)
    assert Counter(character for character in shown(blocks, 200) if character in letters) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "**b**", "", "`c`", "日本"]), min_size=1, max_size=5), max_size=5))
def test_any_table_fits_its_width(rows: list[list[str]]) -> None:
    text = "| x | y |\n|---|--:|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    for block in stream(text, 3):
        assert all(strip.cell_length == 30 for strip in lay_out(block, 30, LOOK).strips)


def test_an_address_in_angle_brackets_is_shown_once() -> None:
    assert shown(stream("see <http://example.org> there", 4)).strip() == "see http://example.org there"


@pytest.mark.parametrize(
    ("piece", "most"), [("[", 7000), ("**a ", 7000), ("<", 7000), ("~~a", 7000), ("\\", 7000), ("- ", 17_000)]
)
def test_what_has_no_place_to_be_cut_does_not_grow_forever(piece: str, most: int) -> None:
    stream, blocks, text = MarkdownStream(), [], ""
    while len(text) < most + 2000:
        text += piece * (1000 // len(piece))
        blocks += stream.feed(piece * (1000 // len(piece)))
        assert sum(len(block.source) for block in stream.growing) <= most
    blocks += stream.feed("", ended=True)
    assert "".join(block.source for block in blocks).replace(" ", "") == text.replace(" ", "")


def test_a_very_long_line_of_code_is_cut_and_loses_nothing() -> None:
    stream, code = MarkdownStream(), "x" * 50_000 + "\n" + "y" * 20_000
    blocks = [*feed_all(stream, f"```\n{code}\n```", ended=True)]
    assert {block.kind for block in blocks} == {"code"} and len(blocks) > 3
    assert max(len(block.source) for block in blocks) < 20_000
    assert "".join(block.source for block in blocks).replace("\n", "") == code.replace("\n", "")


def test_a_long_table_is_finished_in_pieces_with_its_header() -> None:
    rows = [f"| {row} | {row * row} |" for row in range(500)]
    stream, blocks = MarkdownStream(), []
    for line in ("| n | square |", "|---|---|", *rows):
        blocks += stream.feed(line + "\n")
        assert sum(len(block.source) for block in stream.growing) < 3000
    blocks += stream.feed("\nAfter.", ended=True)
    *tables, after = [block.source.split("\n") for block in blocks]
    assert after == ["After."] and len(tables) > 5
    assert [row for table in tables for row in table[2:]] == rows
    assert all(table[:2] == ["| n | square |", "|---|---|"] for table in tables)
