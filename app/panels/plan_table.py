"""The table of a plan's operations, as the dtype and the kernel panel show them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable


class PlanTable(DataTable[Text]):
    """A row an operation or a group of them."""

    DEFAULT_CSS = """
    PlanTable {
        height: 1fr; background: $background; scrollbar-size: 0 1;
        &:focus { background-tint: transparent; }
    }
    PlanTable > .datatable--header { background: $background; color: $primary; text-style: none; }
    PlanTable > .datatable--even-row { background: $background; }
    """

    def __init__(self, columns: Sequence[str], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=1)
        self._titles = columns

    def on_mount(self) -> None:
        self.add_columns(*self._titles)
