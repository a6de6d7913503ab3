"""The dtype panel: every operation of the plan as it runs, and for the one under the cursor why that kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from app.panels.plan_table import PlanTable
from app.theme import Look, make_look, on_theme

if TYPE_CHECKING:
    from inference.plan.explain import PlanRow

_COLUMNS = ("Layer", "Operation", "In → out", "Weights", "Sum in", "Shape", "Kernel", "On")


class DtypePanel(Vertical):
    """A table with a row an operation. The table is filled when the panel is opened, not before."""

    DEFAULT_CSS = """
    DtypePanel { background: $background; }
    DtypePanel #plan-detail { height: auto; max-height: 5; padding: 0 1; border-top: solid $border; }
    """
    HELP = """# Dtypes

    The plan as it runs: a row an operation, with the dtypes that go in and come out, what it sums in, and its kernel.
    Arrows move through the rows; the text below tells of the one at the cursor why it is so."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("p", "switch_phase", "Prefill/decode", id="dtypes.phase")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._plans: dict[str, tuple[PlanRow, ...]] = {"decode": (), "prefill": ()}
        self._phase = "decode"
        self._filled: tuple[PlanRow, ...] | None = None
        self._look: Look | None = None

    def compose(self) -> ComposeResult:
        yield PlanTable(_COLUMNS, id="plan")
        yield Static(id="plan-detail", markup=False)

    def on_mount(self) -> None:
        on_theme(self, self._fill)

    def show_plans(self, decode: tuple[PlanRow, ...], prefill: tuple[PlanRow, ...]) -> None:
        """Take the plans of the loaded model; empty ones when none is loaded."""
        self._plans = {"decode": decode, "prefill": prefill}
        if self.display:
            self._fill()

    def on_show(self) -> None:
        self._fill()

    def action_switch_phase(self) -> None:
        self._phase = "prefill" if self._phase == "decode" else "decode"
        self._fill()

    def _fill(self) -> None:
        rows = self._plans[self._phase]
        dispatches = sum(row.dispatches for row in rows)
        self.border_title = f"Dtypes · {self._phase} · {len(rows)} operations, {dispatches} dispatches"
        self.border_subtitle = "tab enters · p prefill/decode"
        table, look = self.query_one(PlanTable), make_look(self.app.theme_variables)
        if rows is self._filled and look == self._look:
            return
        self._filled, self._look = rows, look
        cursor = table.cursor_row
        table.clear()
        for row in rows:
            table.add_row(*plan_cells(row, look))
        table.move_cursor(row=min(cursor, len(rows) - 1))
        self._detail(table.cursor_row)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._detail(event.cursor_row)

    def _detail(self, index: int) -> None:
        rows = self._filled or ()
        look = make_look(self.app.theme_variables)
        text = plan_detail(rows[index], look) if 0 <= index < len(rows) else Text("No model is loaded.", look.muted)
        self.query_one("#plan-detail", Static).update(text)


def plan_cells(row: PlanRow, look: Look) -> list[Text]:
    """One row of the table."""
    name = row.name if row.kind in row.name else f"{row.kind} {row.name}"
    cast = row.input_dtype != row.output_dtype
    return [
        Text("" if row.layer is None else str(row.layer), look.muted, justify="right"),
        Text(name),
        Text(f"{row.input_dtype} → {row.output_dtype}", look.accent if cast else ""),
        Text(row.weight, look.primary),
        Text(row.accumulate),
        Text(row.shape, look.muted),
        Text(row.variant),
        Text(row.device, look.muted),
    ]


def plan_detail(row: PlanRow, look: Look) -> Text:
    """Why that row's kernel was chosen, which were passed over, and what was fused."""
    text = Text.assemble((row.variant or row.kind, look.primary), (f"  {row.reason}", look.text))
    for variant, why in row.rejected:
        text.append("\nnot ", look.muted)
        text.append(variant, look.warning)
        text.append(f"  {why}", look.muted)
    if row.moved_bytes:
        text.append(f"\n{row.moved_bytes:,} bytes a token", look.muted)
    for note in row.notes:
        text.append(f"\n{note}", look.muted)
    return text
