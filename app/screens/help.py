"""The help overlay: every key and every command."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.screens.slash_commands import COMMANDS
from app.theme import make_look


class HelpScreen(ModalScreen[None]):
    """Keys as (key, what it does), then the slash commands."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll {
        width: 72; max-width: 96%; height: auto; max-height: 92%;
        padding: 1 2; border: round $border; background: $background;
        border-title-color: $primary; scrollbar-size-vertical: 1;
    }
    HelpScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss", "Close", id="help.close"),
    ]

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        look = make_look(self.app.theme_variables)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style=look.primary)
        grid.add_column(style=look.text)
        for key, what in self._keys:
            grid.add_row(Text(key), Text(what))
        grid.add_row("", "")
        for name, command in COMMANDS.items():
            grid.add_row(Text(f"/{name}"), Text(f"{command.usage}  {command.help}".strip()))
        with VerticalScroll() as box:
            box.border_title = "Help"
            box.border_subtitle = "esc closes"
            yield Static(grid)
