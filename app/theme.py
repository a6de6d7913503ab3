"""The colours: three Textual themes of our own, and the `Look` that text rendering takes from whichever is active."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme
from textual.widget import Widget

GLASS = Theme(
    name="glass",
    primary="#7cc4d8",
    secondary="#8fa8c8",
    accent="#e0b583",
    foreground="#d5dbe3",
    background="#12161c",
    surface="#1a2029",
    panel="#232b36",
    success="#93c99b",
    warning="#e3c078",
    error="#e08585",
    dark=True,
    variables={
        "footer-background": "#12161c",
        "footer-item-background": "#12161c",
        "footer-key-foreground": "#7cc4d8",
        "footer-description-foreground": "#8b95a3",
        "block-cursor-background": "#2d4753",
        "block-cursor-foreground": "#e8eef5",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#202833",
        "block-cursor-blurred-foreground": "#d5dbe3",
        "input-selection-background": "#7cc4d8 30%",
        "scrollbar": "#2c3643",
        "scrollbar-hover": "#3b4858",
        "scrollbar-active": "#7cc4d8",
        "scrollbar-background": "#12161c",
        "scrollbar-background-hover": "#12161c",
        "scrollbar-background-active": "#12161c",
        "scrollbar-corner-color": "#12161c",
        "border": "#2c3643",
        "border-blurred": "#2c3643",
    },
)

GLASS_LIGHT = Theme(
    name="glass-light",
    primary="#1f7389",
    secondary="#45617f",
    accent="#96591b",
    foreground="#242b33",
    background="#f7f8f9",
    surface="#eceff2",
    panel="#e1e6ea",
    success="#2c7a3d",
    warning="#8a6100",
    error="#b03a3a",
    dark=False,
    variables={
        "look-muted": "#5e6873",
        "footer-background": "#f7f8f9",
        "footer-item-background": "#f7f8f9",
        "footer-key-foreground": "#1f7389",
        "footer-description-foreground": "#5e6873",
        "block-cursor-background": "#cfe3ea",
        "block-cursor-foreground": "#12161c",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#e1e6ea",
        "block-cursor-blurred-foreground": "#242b33",
        "scrollbar": "#cdd4da",
        "scrollbar-background": "#f7f8f9",
        "scrollbar-background-hover": "#f7f8f9",
        "scrollbar-background-active": "#f7f8f9",
        "scrollbar-corner-color": "#f7f8f9",
        "border": "#cdd4da",
        "border-blurred": "#cdd4da",
    },
)

# Only the colours that the terminal itself names, so that it is legible wherever the terminal is.
GLASS_16 = Theme(
    name="glass-16",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    accent="ansi_magenta",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    dark=True,
    variables={
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        "look-muted": "ansi_bright_black",
        "look-faint": "ansi_bright_black",
        "footer-key-foreground": "ansi_cyan",
        "footer-description-foreground": "ansi_default",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_cyan",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-foreground": "ansi_default",
        "block-cursor-blurred-background": "ansi_default",
        "block-cursor-blurred-text-style": "bold",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_cyan",
        "input-selection-foreground": "ansi_black",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_black",
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": "ansi_bright_black",
        "scrollbar-active": "ansi_cyan",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "border": "ansi_bright_black",
        "border-blurred": "ansi_bright_black",
    },
)

THEMES = (GLASS, GLASS_LIGHT, GLASS_16)


def choose_theme(wanted: str, available: Collection[str], color_system: str | None) -> str:
    """The name of the theme for `wanted`, which "auto" and unknown names leave to the terminal.

    `color_system` is what Rich finds in TERM and COLORTERM: "truecolor", "256", "standard" for 16 colours, or None.
    """
    if wanted in available:
        return wanted
    return (GLASS_16 if color_system in ("standard", None) else GLASS).name


@dataclass(frozen=True)
class Look:
    """The colours that transcript and panels draw with; equal looks draw the same."""

    text: Style
    muted: Style
    faint: Style
    primary: Style
    secondary: Style
    accent: Style
    success: Style
    warning: Style
    error: Style
    surface: Style


def on_theme(widget: Widget, draw: Callable[[], object]) -> None:
    """Have a mounted widget drawn anew when other colours are chosen, unless it is hidden: it will be when shown."""

    def changed(theme: Theme) -> None:
        if widget.display:
            draw()

    widget.app.theme_changed_signal.subscribe(widget, changed)


def make_look(variables: Mapping[str, str]) -> Look:
    """The look of a theme, from `App.theme_variables`."""

    def color(name: str, fallback: str) -> Color:
        try:
            return Color.parse(variables.get(name, fallback))
        except ColorParseError:
            return Color.parse(fallback)

    def style(color: Color) -> Style:
        return Style(color=color.rich_color)

    def blend(name: str, share: float) -> Color:
        """A colour between background and foreground; those of a terminal's own palette cannot be mixed."""
        return color(name, "") if name in variables else background.blend(foreground, share)

    foreground, background = color("foreground", "#d5dbe3"), color("background", "#12161c")
    return Look(
        text=Style(color=foreground.rich_color, bgcolor=background.rich_color),
        muted=style(blend("look-muted", 0.6)),
        faint=style(blend("look-faint", 0.3)),
        primary=style(color("primary", "#7cc4d8")),
        secondary=style(color("secondary", "#8fa8c8")),
        accent=style(color("accent", "#e0b583")),
        success=style(color("success", "#93c99b")),
        warning=style(color("warning", "#e3c078")),
        error=style(color("error", "#e08585")),
        surface=Style(bgcolor=color("surface", "#1a2029").rich_color),
    )
