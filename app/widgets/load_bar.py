"""One line above the prompt while a model is fetched or loaded."""

from __future__ import annotations

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from app.sanitize import visible
from app.theme import Look, make_look
from app.units import format_bytes
from inference.events import Loading


class LoadBar(Widget):
    """Draws the latest `Loading`; hidden while there is none."""

    DEFAULT_CSS = """
    LoadBar { height: 2; padding: 0 2; display: none; background: $background; }
    """

    progress: reactive[Loading | None] = reactive(None)

    def watch_progress(self, progress: Loading | None) -> None:
        self.display = progress is not None

    def render(self) -> Text:
        if self.progress is None:
            return Text()
        return load_text(self.progress, self.size.width, make_look(self.app.theme_variables))


def load_text(loading: Loading, width: int, look: Look) -> Text:
    """Two lines: what happens, and a bar with the share done, or only the amount where the whole is unknown."""
    stage = Text(visible(loading.stage), look.text)
    stage.truncate(width, overflow="ellipsis")
    if not loading.total:
        amount = f"{format_bytes(loading.done)}  " if loading.done else ""
        return Text.assemble(stage, "\n", (f"{amount}esc cancels", look.muted))
    share = min(1.0, loading.done / loading.total)
    done, total = (format_bytes(n) if loading.unit == "bytes" else f"{n:,}" for n in (loading.done, loading.total))
    figures = f" {share:4.0%}  {done} of {total}  esc cancels"
    room = max(4, width - len(figures))
    filled = round(room * share)
    return Text.assemble(
        stage, "\n", ("━" * filled, look.primary), ("━" * (room - filled), look.faint), (figures, look.muted)
    )
