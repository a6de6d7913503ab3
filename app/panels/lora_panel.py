"""The LoRA panel: the adapters in use with their strengths, what they cost, and what they changed in the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from app.lora_command import Strengths
from app.panels.live_panel import LivePanel
from app.panels.lora_cost import LoraCost, cost_text
from app.panels.lora_row import LoraRow
from app.theme import make_look

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter

_SETTLE_S = 0.15  # a slider rests so long before the engine hears of it


class AddRow(Widget, can_focus=True):
    """The last row: Enter or a click calls `chosen`."""

    DEFAULT_CSS = """
    AddRow { height: 1; width: 100%; color: $foreground 60%; pointer: pointer; }
    AddRow:focus { background: $block-cursor-background; color: $foreground; }
    """

    def __init__(self, chosen: Callable[[], None]) -> None:
        super().__init__()
        self._chosen = chosen

    def render(self) -> Text:
        return Text(" + add an adapter: a PEFT folder, a GGUF file, or org/repo on the hub", no_wrap=True)

    def on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            self._chosen()

    def on_click(self) -> None:
        self._chosen()


class LoraPanel(LivePanel, can_focus=False):
    """Rows that the person moves, and below them the cost.

    `change` is called with the strengths that the person wants once what is moved has come to rest; `add` where the
    person wants to choose another adapter.
    """

    DEFAULT_CSS = """
    LoraPanel Vertical { height: auto; width: 100%; }
    """
    HELP = """# LoRA adapters

    A row an adapter with its strength, and below them what they cost. A change is used from the next reply on, which
    computes the conversation anew; digits and enter set a strength, from -4 to 4."""
    BORDER_TITLE = "LoRA adapters"
    BORDER_SUBTITLE = "← → 0.1 · digits · space off/on · del drops · a adds"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "The adapter above", show=False, id="lora.up"),
        Binding("down", "move(1)", "The adapter below", show=False, id="lora.down"),
        Binding("a", "add", "Add an adapter", show=False, id="lora.add"),
    ]

    def __init__(self, change: Callable[[Strengths], None], add: Callable[[], None]) -> None:
        super().__init__(id="lora")
        self._change = change
        self._add = add
        self._wanted: dict[str, float] = {}
        self._waiting = False
        self._settles: Timer | None = None
        self._cost = LoraCost()

    def compose(self) -> ComposeResult:
        yield Vertical(id="lora-rows")
        yield AddRow(self._add)
        yield Static(id="lora-cost", markup=False)

    def show_adapters(self, adapters: Sequence[AppliedAdapter], cost: LoraCost) -> None:
        """Take what is in use now. A strength that the person has moved since then stays as it is wanted."""
        rows = {row.path: row for row in self.query(LoraRow)}
        paths = [str(each.adapter.path) for each in adapters]
        for number, (path, each) in enumerate(zip(paths, adapters, strict=True), 1):
            if row := rows.get(path):
                row.number = number
                row.strength = self._wanted.get(path, each.strength)
                row.pending = path in self._wanted
                row.refresh()
            else:
                self.query_one("#lora-rows").mount(LoraRow(number, each.adapter, each.strength))
        for path in rows.keys() - set(paths):
            rows[path].remove()
            self._wanted.pop(path, None)
        self.show_cost(cost)
        self._waiting = False
        self._send()

    def show_cost(self, cost: LoraCost) -> None:
        """Take new figures."""
        self._cost = cost
        self._changed()

    def _draw(self) -> None:
        self.query_one("#lora-cost", Static).update(cost_text(self._cost, make_look(self.app.theme_variables)))

    def action_move(self, by: int) -> None:
        """Move the focus among the rows."""
        places = self._places()
        index = places.index(self.screen.focused) if self.screen.focused in places else 0
        places[min(len(places) - 1, max(0, index + by))].focus()

    def action_add(self) -> None:
        """Ask for another adapter."""
        self._add()

    def on_lora_row_moved(self, event: LoraRow.Moved) -> None:
        event.stop()
        self._wanted[event.row.path] = event.row.strength = event.strength
        event.row.pending = True
        if self._settles is not None:
            self._settles.stop()
        self._settles = self.set_timer(_SETTLE_S, self._settled)

    def on_lora_row_dropped(self, event: LoraRow.Dropped) -> None:
        event.stop()
        self._wanted.pop(event.row.path, None)
        self._change(((event.row.path, None),))

    def _settled(self) -> None:
        self._settles = None
        self._send()

    def _send(self) -> None:
        """Tell of what is wanted, unless more may come in a moment or the last change is still on its way."""
        if self._wanted and not self._waiting and self._settles is None:
            strengths, self._wanted, self._waiting = tuple(self._wanted.items()), {}, True
            self._change(strengths)

    def _places(self) -> list[Widget]:
        return [*self.query(LoraRow), self.query_one(AddRow)]
