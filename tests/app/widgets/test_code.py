from __future__ import annotations

import pytest

from app.theme import GLASS, GLASS_LIGHT, make_look
from app.widgets.code import highlight


@pytest.mark.parametrize("language", ["python", "rust", "html", "bash title=x", "no-such-language", ""])
def test_highlighting_keeps_every_character(language: str) -> None:
    code = "def f(x):\n\n    return '<b>' + x  # comment\n\n"
    assert highlight(code, language, make_look({})).plain == code


def test_tabs_become_spaces() -> None:
    assert highlight("\tx\ty", "python", make_look({})).plain == "    x   y"


def test_keywords_take_the_themes_colour() -> None:
    look = make_look(GLASS.to_color_system().generate())
    spans = highlight("def f(): pass", "python", look).spans
    assert spans[0].style == look.primary


@pytest.mark.parametrize("theme", [GLASS, GLASS_LIGHT])
def test_the_look_has_the_themes_colours(theme: object) -> None:
    look = make_look(theme.to_color_system().generate())  # type: ignore[attr-defined]
    assert look.primary.color is not None
    assert look.primary.color.name.lower() == theme.primary  # type: ignore[attr-defined]
