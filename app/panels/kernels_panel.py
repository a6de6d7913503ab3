"""The kernel panel: which variant runs each operation and why, and on request what each takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from app.panels.kernel_groups import KernelGroup, group_kernels
from app.panels.kv_panel import layer_ranges
from app.panels.plan_table import PlanTable
from app.theme import Look, make_look, on_theme
from app.units import format_count

if TYPE_CHECKING:
    from inference.op_times import OpTimes
    from inference.plan.explain import PlanRow

Phase = Literal["decode", "prefill"]
_COLUMNS = ("Layers", "Operation", "Kernel", "µs", "Share", "Dispatches", "Shape")


class KernelsPanel(Vertical):
    """A table with a row a group of equal operations; `measure` is called when the person asks for times."""

    DEFAULT_CSS = """
    KernelsPanel { background: $background; }
    KernelsPanel #kernel-detail { height: auto; max-height: 5; padding: 0 1; border-top: solid $border; }
    KernelsPanel #kernel-times { height: auto; max-height: 3; padding: 0 1; }
    """
    HELP = """# Kernels

    Which kernel was chosen for each group of equal operations and why, and why not the others; enter unfolds a group.
    Times are measured on request only, since that splits the pass and costs speed."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "switch_phase", "Prefill/decode", show=False, id="kernels.phase"),
        Binding("t", "measure", "Time every operation", show=False, id="kernels.time"),
    ]

    def __init__(self, measure: Callable[[Phase], None], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._measure = measure
        self._plans: dict[Phase, tuple[PlanRow, ...]] = {"decode": (), "prefill": ()}
        self._times: dict[Phase, OpTimes] = {}
        self._phase: Phase = "decode"
        self._state = ""
        self._unfolded: set[str] = set()
        self._filled: object = None
        self._lines: list[tuple[str, KernelGroup]] = []
        """What each row of the table shows, with the name of the group that it folds into or unfolds from."""

    def compose(self) -> ComposeResult:
        yield PlanTable(_COLUMNS, id="kernel-table")
        yield Static(id="kernel-detail", markup=False)
        yield Static(id="kernel-times", markup=False)

    def on_mount(self) -> None:
        on_theme(self, self._fill)

    def show_plans(self, decode: tuple[PlanRow, ...], prefill: tuple[PlanRow, ...]) -> None:
        """Take the plans of the loaded model; empty ones when none is loaded. What was measured was of others."""
        self._plans = {"decode": decode, "prefill": prefill}
        self._times, self._state = {}, ""
        self._refill()

    def show_times(self, times: OpTimes) -> None:
        """Take what was measured."""
        self._times[times.phase], self._state = times, ""
        self._refill()

    def show_failure(self, message: str) -> None:
        """The measurement did not come about."""
        self._state = message
        self._refill()

    def on_show(self) -> None:
        if self._filled != (self._phase, self._plans[self._phase], make_look(self.app.theme_variables)):
            self._fill()

    def action_switch_phase(self) -> None:
        """Show the other plan."""
        self._phase = "prefill" if self._phase == "decode" else "decode"
        self._state = ""
        self._fill()

    def action_measure(self) -> None:
        """Ask for times."""
        if self._plans[self._phase]:
            self._state = "Measuring, once the engine has time …"
            self._fill()
            self._measure(self._phase)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self._lines):
            self._unfolded ^= {self._lines[event.cursor_row][0]}
            self._fill()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._detail(event.cursor_row)

    def _refill(self) -> None:
        self._filled = None
        if self.display:
            self._fill()

    def _fill(self) -> None:
        rows, times = self._plans[self._phase], self._times.get(self._phase)
        dispatches = sum(row.dispatches for row in rows)
        self.border_title = f"Kernels · {self._phase} · {len(rows)} operations, {dispatches} dispatches"
        self.border_subtitle = "tab enters · ⏎ unfolds · p prefill/decode · t times"
        table, look = self.query_one(PlanTable), make_look(self.app.theme_variables)
        self._filled = (self._phase, rows, look)
        whole, split = sum(times.ops) if times else 0.0, len({row.device for row in rows}) > 1
        kept = self._lines[table.cursor_row][0] if table.cursor_row < len(self._lines) else ""
        self._lines = []
        table.clear()
        for group in group_kernels(rows, times):
            name = f"{group.rows[0].index}"
            unfolded = name in self._unfolded and len(group.rows) > 1
            members = [group.single(index) for index in range(len(group.rows))] if unfolded else []
            for each in (group, *members):
                self._lines.append((name, each))
                table.add_row(*kernel_cells(each, each is not group, unfolded, whole, look, split))
        names = [name for name, _ in self._lines]
        table.move_cursor(row=names.index(kept) if kept in names else 0)
        self._detail(table.cursor_row)
        text = Text(self._state, look.warning) if self._state else times_text(rows, times, look)
        self.query_one("#kernel-times", Static).update(text)

    def _detail(self, line: int) -> None:
        look = make_look(self.app.theme_variables)
        known = 0 <= line < len(self._lines)
        text = kernel_detail(self._lines[line][1], look) if known else Text("No model is loaded.", look.muted)
        self.query_one("#kernel-detail", Static).update(text)


def kernel_cells(
    group: KernelGroup, member: bool, unfolded: bool, whole: float, look: Look, split: bool = False
) -> list[Text]:
    """One row of the table; `whole` are the seconds of all operations, 0 where they are not known. Of a model that is
    split, the device is told too."""
    row, count = group.rows[0], len(group.rows)
    layers = f"{layer_ranges(group.layers[:1])}" if count == 1 else f"{'▾' if unfolded else '▸'} {count} x"
    took = sum(group.seconds)
    return [
        Text(f"  {layers}" if member else layers, look.muted if count == 1 else look.accent),
        Text(row.name if row.kind in row.name else f"{row.kind} {row.name}", look.muted if member else ""),
        Text.assemble((row.variant, look.primary), (f" · {row.device}" if split else "", look.muted)),
        Text(f"{took * 1e6:,.1f}" if group.seconds else "", justify="right"),
        Text(f"{took / whole:.1%}" if group.seconds and whole else "", look.muted, justify="right"),
        Text(f"{group.dispatches:,}", justify="right"),
        Text(row.shape, look.muted),
    ]


def kernel_detail(group: KernelGroup, look: Look) -> Text:
    """Why that kernel runs, which were passed over and why, and the spread of what it took."""
    row = group.rows[0]
    text = Text.assemble((row.variant or row.kind, look.primary), (f"  {row.reason}", look.text))
    for variant, why in row.rejected:
        text.append("\nnot ", look.muted).append(variant, look.warning).append(f"  {why}", look.muted)
    if row.moved_bytes:
        text.append(f"\n{row.moved_bytes:,} bytes a token each", look.muted)
    if len(group.rows) > 1:
        text.append(f"\nlayers {layer_ranges(group.layers)}", look.muted)
        if group.seconds:
            least, most = min(group.seconds), max(group.seconds)
            slowest = group.layers[group.seconds.index(most)]
            words = f", {least * 1e6:,.1f} to {most * 1e6:,.1f} µs each, the most in layer {slowest}"
            text.append(words, look.muted)
    return text


def times_text(rows: tuple[PlanRow, ...], times: OpTimes | None, look: Look) -> Text:
    """What was measured and how, or what measuring would cost."""
    gpu, split = any(row.device == "webgpu" for row in rows), len({row.device for row in rows}) > 1
    if times is None:
        cost = "in a compute pass of its own, which splits the step and makes it slower" if gpu else "by the clock"
        return Text(f"t times a step now, each operation {cost}." if rows else "", look.muted)
    what = "on the GPU, by its timestamps" if gpu else "by the clock"
    if split:
        what = "on both devices, WebGPU's by its timestamps, the rest by the clock"
    step = f"{format_count(times.rows, 'token')} after {times.depth:,}, {format_count(times.steps, 'step')}"
    out = Text.assemble(
        (f"{sum(times.ops) * 1e6:,.0f} µs", look.text), (f" for all operations {what} ({step}, median)", look.muted)
    )
    if gpu:
        out.append(f"; {times.whole * 1e6:,.0f} µs", look.text).append(
            " as the step runs otherwise" if split else " as the one pass that runs otherwise", look.muted
        )
    return out
