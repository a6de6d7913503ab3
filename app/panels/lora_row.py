"""A row of the LoRA panel: one adapter, what it is, and a slider for its strength."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from app.sanitize import visible
from app.theme import Look, make_look
from app.units import format_bytes, format_count

if TYPE_CHECKING:
    from inference.lora.adapter import Adapter

LEAST, MOST = -1.0, 2.0
"""The ends of the slider."""

_VALUE = 8  # cells
_TYPED = "0123456789.-"


class LoraRow(Widget, can_focus=True):
    """`strength` is what the person wants; `pending` tells that it is not in effect yet."""

    DEFAULT_CSS = """
    LoraRow { height: 1; width: 100%; pointer: pointer; }
    LoraRow:focus { background: $block-cursor-background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-0.1)", "Less", show=False, id="lora.less"),
        Binding("right", "step(0.1)", "More", show=False, id="lora.more"),
        Binding("shift+left", "step(-0.01)", "A little less", show=False, id="lora.little_less"),
        Binding("shift+right", "step(0.01)", "A little more", show=False, id="lora.little_more"),
        Binding("space", "switch", "Off/on", show=False, id="lora.toggle"),
        Binding("delete", "drop", "Drop", show=False, id="lora.drop"),
    ]

    strength: reactive[float] = reactive(1.0)
    pending: reactive[bool] = reactive(False)
    typed: reactive[str] = reactive("")

    class Moved(Message):
        """The person wants the row's adapter at `strength`.

        It may hear of an older one before this arrives: what the engine was told before.
        """

        def __init__(self, row: LoraRow, strength: float) -> None:
            super().__init__()
            self.row = row
            self.strength = strength

    class Dropped(Message):
        """The person wants the row's adapter gone."""

        def __init__(self, row: LoraRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, number: int, adapter: Adapter, strength: float) -> None:
        super().__init__()
        self.number = number
        self.adapter = adapter
        self._before_off = 1.0
        self._track = range(0)
        self.set_reactive(LoraRow.strength, strength)

    @property
    def path(self) -> str:
        """What the engine thread knows the adapter by."""
        return str(self.adapter.path)

    def render(self) -> Text:
        look, width = make_look(self.app.theme_variables), self.size.width
        line, self._track = row_line(self, width, look)
        return line

    def action_step(self, by: float) -> None:
        """Move the strength, within the slider's ends."""
        self._want(min(MOST, max(LEAST, self.strength + by)))

    def action_switch(self) -> None:
        """Turn the adapter off, or on again at the strength that it had."""
        if self.strength:
            self._before_off = self.strength
        self._want(0.0 if self.strength else self._before_off)

    def action_drop(self) -> None:
        """Ask for the adapter to be dropped."""
        self.post_message(self.Dropped(self))

    def on_key(self, event: events.Key) -> None:
        """Digits type a strength; Enter takes it, Esc leaves it."""
        if event.character and event.character in _TYPED:
            self.typed += event.character
        elif self.typed and event.key == "backspace":
            self.typed = self.typed[:-1]
        elif self.typed and event.key == "enter":
            self._take_typed()
        elif self.typed and event.key == "escape":
            self.typed = ""
        else:
            return
        event.stop()
        event.prevent_default()

    def on_blur(self) -> None:
        self.typed = ""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.x in self._track:
            self.capture_mouse()
            self._want(track_strength(event.x - self._track.start, len(self._track)))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            place = min(max(event.x, self._track.start), self._track.stop - 1) - self._track.start
            self._want(track_strength(place, len(self._track)))

    def on_mouse_up(self) -> None:
        self.release_mouse()

    def _take_typed(self) -> None:
        try:
            self._want(float(self.typed))
        except ValueError:
            self.notify(f"{self.typed} is not a number.", severity="warning", timeout=3, markup=False)
        self.typed = ""

    def _want(self, strength: float) -> None:
        strength = round(strength, 2) + 0.0  # no negative zero
        if strength != self.strength:
            self.strength, self.pending = strength, True
            self.post_message(self.Moved(self, strength))


def row_line(row: LoraRow, width: int, look: Look) -> tuple[Text, range]:
    """The line of a row, exactly `width` cells, and the cells of its slider."""
    adapter = row.adapter
    facts = f"r {', '.join(map(str, adapter.ranks))}"
    if width >= 60:
        facts += f" · {format_count(len(adapter.parts), 'projection')} · {format_bytes(adapter.nbytes)}"
    slider = 31 if width >= 100 else 16
    name = Text.assemble(f" {row.number} ", (visible(adapter.name), look.muted if not row.strength else look.text))
    name.truncate(max(4, width - len(facts) - slider - _VALUE - 4), overflow="ellipsis", pad=True)
    line = Text.assemble(name, "  ", (facts, look.muted), "  ")
    start = line.cell_len
    line.append_text(track(row.strength, slider, look))
    if row.typed:
        line.append(f" {row.typed}▏".ljust(_VALUE)[:_VALUE], look.accent)
    else:
        value = strength_words(row.strength) + ("…" if row.pending else " ")
        line.append(value.rjust(_VALUE), look.accent if row.pending else look.text)
    line.truncate(width, pad=True)
    return line, range(start, start + slider)


def track(strength: float, width: int, look: Look) -> Text:
    """The slider: a line with a mark at 0, the handle, and what lies between them in colour."""
    zero, handle = track_place(0, width), track_place(strength, width)
    low, high = sorted((zero, handle))
    cells = Text()
    for place in range(width):
        if place == handle:
            cells.append("●", look.primary if strength else look.muted)
        elif place == zero:
            cells.append("┼", look.muted)
        else:
            cells.append("━" if low <= place <= high else "─", look.primary if low <= place <= high else look.faint)
    return cells


def track_place(strength: float, width: int) -> int:
    """The cell of a slider of `width` cells for a strength; one beyond the ends is at an end."""
    share = (strength - LEAST) / (MOST - LEAST)
    return round(min(1.0, max(0.0, share)) * (width - 1))


def track_strength(place: int, width: int) -> float:
    """The strength of a cell of a slider of `width` cells."""
    return LEAST + (MOST - LEAST) * place / (width - 1)


def strength_words(strength: float) -> str:
    """A strength for people: `+0.50`, or `off`."""
    return f"{strength:+.2f}" if strength else "off"
