"""The guide in the empty transcript of the first start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table
from rich.text import Text
from textual.app import RenderResult
from textual.containers import Container
from textual.widget import Widget

from app.guide import guide_rows
from app.theme import make_look


class Guide(Container):
    """Stands above what follows it. `keys` gives those in effect as they are shown, by the ids of bindings."""

    DEFAULT_CSS = """
    Guide { dock: bottom; height: auto; max-height: 80%; padding: 0 1; }
    GuideText {
        width: 100%; height: auto; padding: 0 1; background: $background;
        border: round $border; border-title-color: $primary; border-subtitle-color: $foreground 65%;
    }
    """

    def __init__(self, keys: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        super().__init__(GuideText(keys))


class GuideText(Widget):
    """The text in its border."""

    BORDER_TITLE = "To begin"
    BORDER_SUBTITLE = "goes with your first message"

    def __init__(self, keys: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        super().__init__()
        self._keys = keys

    def render(self) -> RenderResult:
        look = make_look(self.app.theme_variables)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style=look.primary)
        for key, what in guide_rows(self._keys()):
            grid.add_row(Text(key), Text(what))
        return grid
