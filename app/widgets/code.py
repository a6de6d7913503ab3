"""Code as coloured text, in the colours of the active theme."""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.lexers.special import TextLexer  # type: ignore[import-untyped]
from pygments.token import Comment, Error, Generic, Keyword, Literal, Name, Number, Operator, String, Token  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]
from rich.style import Style
from rich.text import Text

from app.theme import Look

TAB_SIZE = 4


@lru_cache(maxsize=64)
def lexer_for(language: str) -> Lexer:
    """The Pygments lexer that a fence's info string names; one that colours nothing where the name is unknown."""
    try:
        return get_lexer_by_name(language.partition(" ")[0] or "text", stripnl=False, ensurenl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False, ensurenl=False)


@lru_cache(maxsize=8)
def _styles(look: Look) -> dict[object, Style]:
    return {
        Token: Style.null(),
        Comment: look.muted + Style(italic=True),
        Keyword: look.primary,
        Keyword.Constant: look.accent,
        Operator: look.secondary,
        Operator.Word: look.primary,
        Name.Function: look.warning,
        Name.Class: look.warning,
        Name.Builtin: look.secondary,
        Name.Decorator: look.accent,
        Name.Tag: look.primary,
        Name.Attribute: look.secondary,
        Name.Exception: look.error,
        String: look.success,
        String.Interpol: look.accent,
        Number: look.accent,
        Literal: look.accent,
        Generic.Deleted: look.error,
        Generic.Inserted: look.success,
        Generic.Heading: look.primary,
        Error: Style.null(),
    }


def may_cut_after(kind: object) -> bool:
    """Whether a token of that kind can end where another highlighting begins: strings and comments span lines."""
    return kind not in String and kind not in Comment


def highlight(code: str, language: str, look: Look) -> Text:
    """`code` as text with the look's colours; tabs are expanded."""
    styles = _styles(look)
    text = Text(no_wrap=False)
    for kind, value in lexer_for(language).get_tokens(code.expandtabs(TAB_SIZE)):
        while kind not in styles:
            kind = kind.parent
        text.append(value, styles[kind])
    return text
