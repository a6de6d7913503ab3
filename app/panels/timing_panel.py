"""The timing panel: speed over the last reply, and where the time of a token went."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Sparkline, Static

from app.panels.body import Body
from app.panels.live_panel import LivePanel
from app.panels.reply_trace import ReplyTrace
from app.panels.timing_figures import head_text, spans_text, timing_figures, token_speeds
from app.theme import make_look


class TimingPanel(LivePanel):
    """Shows the figures of the last reply."""

    DEFAULT_CSS = """
    TimingPanel { scrollbar-gutter: stable; }
    TimingPanel .timing-label { color: $foreground 60%; }
    TimingPanel Sparkline { width: 100%; height: 2; }
    """
    HELP = """# Timing

    Where the time of each token of the last reply went, from encoding commands to handing the text over.
    The curves are tokens per second and the slowest tokens over the reply; arrows scroll."""
    BORDER_TITLE = "Timing"

    def __init__(self, trace: ReplyTrace, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._trace = trace
        self._gpu = False
        self._moved = 0

    def compose(self) -> ComposeResult:
        yield Body(id="timing-head")
        yield Static("tokens per second", classes="timing-label", markup=False)
        yield Sparkline(id="timing-rate")
        yield Static("time per token, its peaks", classes="timing-label", markup=False)
        yield Sparkline(id="timing-walls")
        yield Body(id="timing-spans")

    def show_device(self, device: str, moved: int) -> None:
        """Where the model runs, and what a token moves between devices, in bytes."""
        self._gpu, self._moved = device == "webgpu", moved

    def show_reply(self) -> None:
        """Take what is new in the trace."""
        self._changed()

    def _draw(self) -> None:
        look, figures = make_look(self.app.theme_variables), timing_figures(self._trace)
        width = self.scrollable_content_region.width
        self.query_one("#timing-head", Body).show(head_text(figures, look))
        for part in self.query("Sparkline, .timing-label, #timing-spans"):
            part.display = figures is not None
        if figures is not None:
            rates, peaks = token_speeds(self._trace.walls[1:], max(8, width))
            self.query_one("#timing-rate", Sparkline).data = rates
            self.query_one("#timing-walls", Sparkline).data = peaks
            self.query_one("#timing-spans", Body).show(spans_text(figures, self._gpu, look, width, self._moved))
