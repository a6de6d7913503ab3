"""One line below the prompt: the model and where it runs, what happens now, and how full the context is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from app.theme import make_look

_GAUGE = 10
_NAME = 8
"""Cells of the model's name that stay in a narrow window."""


@dataclass(frozen=True)
class Status:
    """What the bar shows. `state` is a few words; `context` 0 means that no model is loaded."""

    model: str = ""
    device: str = ""
    state: str = "no model"
    rate: float = 0.0
    tokens: int = 0
    context: int = 0
    busy: bool = False


class StatusBar(Widget):
    """Draws a `Status`."""

    DEFAULT_CSS = """
    StatusBar { height: 1; padding: 0 2; background: $background; }
    """

    status: reactive[Status] = reactive(Status())

    def change(self, **changes: object) -> None:
        """Change some fields of the status."""
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]

    def render(self) -> Text:
        return status_line(self.status, self.size.width, self.app.theme_variables)


def status_line(status: Status, width: int, variables: dict[str, str]) -> Text:
    """The bar's text, exactly `width` cells: the left part is cut where the window is narrow."""
    look = make_look(variables)
    right = Text()
    if status.rate:
        right.append(f"{status.rate:.1f} tok/s  ", look.text)
    if status.context:
        share = min(1.0, status.tokens / status.context)
        color = look.error if share > 0.95 else look.warning if share > 0.8 else look.primary
        filled = round(share * _GAUGE)
        right.append("━" * filled, color)
        right.append("━" * (_GAUGE - filled), look.faint)
        right.append(f" {status.tokens:,}/{status.context:,}", look.muted)
    mark = look.warning if status.busy else look.success if status.context else look.faint
    rest = [part for part in (status.device, status.state) if part]
    room = max(0, width - cell_len(right.plain) - 1)
    # Of a model's name the beginning tells enough; what happens now is told whole where there is room for that.
    model = Text(status.model, look.text + Style(bold=True))
    model.truncate(max(_NAME, room - 2 - sum(2 + cell_len(part) for part in rest)), overflow="ellipsis")
    left = Text.assemble(("● ", mark), model)
    for part in rest:
        left.append(("  " if left.plain != "● " else "") + part, look.muted)
    left.truncate(room, overflow="ellipsis" if room else "crop")
    left.pad_right(max(0, width - cell_len(left.plain) - cell_len(right.plain)))
    return left + right
