"""What the tests of panels share."""

from __future__ import annotations

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from app.screens.panel_menu import PanelMenu
from tests.app.test_chat import chat, until


async def open_panel(pilot: Pilot[None], key: str) -> None:
    """Choose a panel from the menu."""
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(pilot.app.screen, PanelMenu))
    await pilot.press(key)
    await until(pilot, lambda: pilot.app.screen is chat(pilot))


def shown(pilot: Pilot[None], selector: str) -> str:
    """The text of a Static."""
    return str(chat(pilot).query_one(selector, Static).render())


def column(table: DataTable[object], index: int) -> list[str]:
    """The cells of a column."""
    return [str(table.get_row_at(row)[index]) for row in range(table.row_count)]
