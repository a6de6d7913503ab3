"""Where panels stand together: beside the transcript in a column, or below it in rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

_LEAST_WIDTH = 58  # cells of a panel, before another stands in the same row


class Dock(Container):
    """Holds panels of which some are shown. `arrange` is called when there is other room, `resize` by the keys."""

    DEFAULT_CSS = """
    Dock > * {
        width: 1fr; height: 1fr;
        border: round $border; border-title-color: $primary; border-subtitle-color: $foreground 65%;
        &:focus-within { border: round $primary; }
        &.-maximized { width: 100%; height: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("z", "full_screen", "This panel on the whole screen, and back", show=False, id="panel.full"),
        Binding(">", "resize(1)", "Larger", show=False, id="panel.larger"),
        Binding("<", "resize(-1)", "Smaller", show=False, id="panel.smaller"),
    ]

    def __init__(
        self, panels: Sequence[Widget], arrange: Callable[[], None], resize: Callable[[Widget, int], None], id: str
    ) -> None:
        super().__init__(*panels, id=id)
        self.panels = tuple(panels)
        self._arrange = arrange
        self._resize = resize

    def on_mount(self) -> None:
        self._arrange()

    def on_resize(self) -> None:
        self._arrange()

    def action_full_screen(self) -> None:
        """Show the panel in use on the whole screen, or put it back."""
        self.screen.maximized = None if self.screen.maximized is not None else self._in_use()

    def action_resize(self, by: int) -> None:
        """Make the panel in use larger or smaller."""
        if (panel := self._in_use()) is not None:
            self._resize(panel, by)

    def _in_use(self) -> Widget | None:
        focused = self.screen.focused
        return next((panel for panel in self.panels if focused and panel in focused.ancestors_with_self), None)


class Column(Dock):
    """Panels one below the other, as wide as the widest of them wants to be."""

    def place(self, sizes: Mapping[Widget, int], small: bool) -> None:
        """Show exactly these panels, each with the columns that it wants."""
        for panel in self.panels:
            panel.display = panel in sizes
        self.display = bool(sizes)
        self.styles.width = "1fr" if small else max(sizes.values(), default=0)
        self.styles.height = "50%" if small else "1fr"

    def peers(self, panel: Widget) -> list[Widget]:
        """The panels that have the size of this one."""
        return [each for each in self.panels if each.display]


class Rows(Dock):
    """Panels side by side, in as many rows as they need, each row as high as the highest of its panels wants to be."""

    DEFAULT_CSS = """
    Rows { layout: grid; margin: 0 1; max-height: 60%; }
    """

    def place(self, sizes: Mapping[Widget, int], small: bool) -> None:
        """Show exactly these panels, each with the rows that it wants."""
        for panel in self.panels:
            panel.display = panel in sizes
        self.display = bool(sizes)
        rows = self._rows()
        if not rows:
            return
        heights = [max(sizes[panel] for panel in row) for row in rows]
        self.styles.height = "50%" if small else sum(heights)
        self.styles.grid_size_columns, self.styles.grid_size_rows = len(rows[0]), len(rows)
        self.styles.grid_rows = " ".join(f"{height}fr" for height in heights)
        for row in rows:
            for panel in row:
                panel.styles.column_span = 1
        rows[-1][-1].styles.column_span = len(rows[0]) - len(rows[-1]) + 1

    def peers(self, panel: Widget) -> list[Widget]:
        """The panels that have the size of this one: those in its row."""
        return next((row for row in self._rows() if panel in row), [])

    def _rows(self) -> list[list[Widget]]:
        shown = [panel for panel in self.panels if panel.display]
        columns = min(len(shown), max(1, self.screen.size.width // _LEAST_WIDTH))
        return [shown[start : start + columns] for start in range(0, len(shown), max(1, columns))]
