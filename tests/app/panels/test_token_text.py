"""Tokens as text: what they complete, nothing that acts on the terminal, lines that fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rich.cells import cell_len

from app.panels.reply_trace import ReplyTrace, branch_text
from app.panels.token_heat import LEAST, heat_legend, heat_level, heat_styles, tenths
from app.panels.token_text import TokenFlow, TokenTexts, one_token, subscript
from app.theme import THEMES, make_look
from inference.events import Alternative, Prompted, Token
from inference.vocabulary import TokenType, Vocabulary

LOOK = make_look({})


def vocabulary(*tokens: str) -> Vocabulary:
    """SentencePiece, with ▁ for a space; <0xHH> is a byte, <name> a control token."""
    kinds = [
        TokenType.BYTE if token.startswith("<0x") else TokenType.CONTROL if token[0] == "<" else TokenType.NORMAL
        for token in tokens
    ]
    return Vocabulary(True, tokens, np.array(kinds, np.int32), strips_space=True)


def texts(*tokens: str) -> list[str]:
    return TokenTexts(vocabulary(*tokens)).push(range(len(tokens)))


def test_a_token_shows_the_characters_that_it_completes() -> None:
    assert texts("▁the", "<s>", "<0xE2>", "<0x82>", "<0xAC>", "x") == [" the", "<s>", "⟨E2⟩", "⟨82⟩", "€", "x"]


@pytest.mark.parametrize("token", ["\x1b[2J", "\u202e", "\u200d", "\x00", "", "a\nb", "\t"])
def test_no_token_acts_on_the_terminal_or_is_invisible(token: str) -> None:
    (shown,) = texts(token or "▁")
    assert cell_len(shown) > 0 and shown.isprintable()
    assert one_token(vocabulary(token or "▁"), 0).isprintable()


def test_a_token_by_itself() -> None:
    tokens = vocabulary("▁a\n", "<0xE2>")
    assert [one_token(tokens, id) for id in range(2)] == ["“ a↵”", "⟨E2⟩"]
    assert subscript(4093) == "₄₀₉₃"


@pytest.mark.parametrize("width", [8, 30, 200])
def test_lines_hold_every_token_once_and_fit(width: int) -> None:
    random = np.random.default_rng(width)
    shown = ["x" * int(random.integers(1, 12)) + ("↵" if random.random() < 0.1 else "") for _ in range(500)]
    whole, pieces = TokenFlow(width), TokenFlow(width)
    whole.push(shown)
    for start in range(0, 500, 7):
        pieces.push(shown[start : start + 7])
    assert whole.starts == pieces.starts
    lines = [whole.tokens(line) for line in range(len(whole.starts))]
    assert [index for line in lines for index in line] == list(range(500))
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        cells = sum(cell_len(shown[index]) for index in line)
        assert cells <= width or len(line) == 1
        # A line ends because of a line break, or because the next token does not fit.
        if following and "↵" not in shown[line[-1]]:
            assert cells + cell_len(shown[following[0]]) > width


def test_heat_has_levels_that_differ_in_every_theme() -> None:
    assert [heat_level(math.log(p)) for p in (1.0, 0.9, 0.89, 0.5, 0.2, 0.05, 1e-9)] == [0, 0, 1, 1, 2, 3, 4]
    assert heat_level(-math.inf) == len(LEAST) - 1
    for theme in THEMES:
        styles = heat_styles(make_look(theme.to_color_system().generate()))
        assert len({str(style) for style in styles}) == len(LEAST)
    assert "tenths" in heat_legend(LOOK, True).plain and "tenths" not in heat_legend(LOOK, False).plain


def test_digits_are_tenths() -> None:
    assert [tenths(math.log(p)) for p in (1.0, 0.95, 0.71, 0.0999)] == ["₉", "₉", "₇", "₀"]


def trace(*ids: int) -> ReplyTrace:
    found = ReplyTrace()
    found.hear(Prompted((5, 6, 7), 2))
    for id in ids:
        found.hear(Token(id, "", -0.5, (Alternative(id, "", -0.5), Alternative(99, "", -1.0))))
    return found


def test_a_branch_keeps_what_stands_before_it() -> None:
    tokens = vocabulary("▁One", "▁two", "<0xC3>", "<0xA9>")
    assert branch_text(tokens, "", [0, 1], 1, 2) == "One\ufffd"
    assert branch_text(tokens, "", [0, 2, 1], 2, 3) == "One\u00e9"
    assert branch_text(tokens, "Zero", [0, 2, 1], 0, 1) == "Zero two"


def test_a_trace_keeps_every_token_with_its_alternatives() -> None:
    reply = trace(1, 2)
    reply.hear(Token(-1, "held back", 0.0))
    assert (len(reply), reply.reused) == (2, 2)
    assert reply.alternatives(1) == [(2, -0.5), (99, -1.0)]
    reply.clear()
    assert len(reply) == 0 and reply.prompt == ()
