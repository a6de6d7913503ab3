"""How likely tokens were, as colours and as digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.color import Color

from app.panels.token_text import subscript
from app.theme import Look

LEAST = (0.9, 0.5, 0.2, 0.05, 0.0)
"""The least probability of each level of heat."""
_MIXED = (0.0, 0.22, 0.42, 0.62, 0.85)  # of the colour, in the background


def heat_level(logprob: float) -> int:
    """0 for a token that was nearly certain, up to len(LEAST) - 1 for an unlikely one."""
    probability = math.exp(logprob)
    return next((level for level, least in enumerate(LEAST) if probability >= least), len(LEAST) - 1)


def heat_styles(look: Look) -> Sequence[Style]:
    """A style for each level: a warmer background where colours can be mixed, else text in other colours."""
    background, warm = look.text.bgcolor, look.error.color
    if background is None or warm is None or background.is_default or background.triplet is None:
        return (Style(), look.success, look.warning, look.accent, look.error + Style(bold=True))
    base, heat = Color.from_rich_color(background), Color.from_rich_color(warm)
    return [Style(bgcolor=base.blend(heat, share).rich_color) for share in _MIXED]


def tenths(logprob: float) -> str:
    """The probability in tenths as one small digit: 9 from 0.9 on, 0 below 0.1."""
    return subscript(min(9, int(math.exp(logprob) * 10)))


def heat_legend(look: Look, digits: bool) -> Text:
    """What the colours mean, and the digits where they are shown."""
    legend = Text("probability ", look.muted)
    for style, least, above in zip(heat_styles(look), LEAST, (1.0, *LEAST), strict=False):
        words = f"≥{least:g}" if least else f"<{above:g}"
        legend.append(f" {words} ", look.text + style)
    return legend.append("  ₀ to ₉: its tenths" if digits else "", look.muted)
