"""Two lanes that answer one question side by side: where they part, how far they are apart, and one to keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Sparkline, Static

from app.screens.side_screen import SideScreen
from app.theme import make_look, on_theme
from app.twin_gap import TwinGap, peaks
from app.twin_lane import Lane
from app.widgets.lane_text import LaneText


class TwinScreen(SideScreen):
    """Shows the lanes that answer `question`, and how far they are apart."""

    DEFAULT_CSS = """
    TwinScreen Horizontal { height: 1fr; }
    TwinScreen .lane { width: 1fr; height: 100%; }
    TwinScreen #lane-0 { border-right: vkey $border; }
    TwinScreen #lane-1 { padding: 0 1 0 0; }
    TwinScreen .heading { height: auto; max-height: 4; padding: 0 1; margin: 0 0 1 0; }
    TwinScreen .figures { height: 2; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    TwinScreen #gap { height: 1; padding: 0 1; margin: 1 0 0 0; text-wrap: nowrap; text-overflow: ellipsis; }
    TwinScreen Sparkline { height: 2; margin: 0 1; }
    """
    HELP = """# Twin lanes

    The same question, answered as the chat is and as `/twin` says, token by token in turn. What both write is plain;
    the first token where they part is marked in both. KL tells how far the right lane's distribution is from the left
    one's at each token of the left lane's text. Left and right keep one of the two, stopping what is being written; the
    other stays as a branch. Esc stops both; once nothing is being written it goes back to the left one."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "keep(0)", "Keep the left reply", id="twin.left", priority=True),
        Binding("right", "keep(1)", "Keep the right reply", id="twin.right", priority=True),
        Binding("up", "scroll('up')", "Scroll both up", id="twin.up", priority=True),
        Binding("down", "scroll('down')", "Scroll both down", id="twin.down", priority=True),
        Binding("pageup", "scroll('page_up')", "Scroll both up", id="twin.page_up", priority=True),
        Binding("pagedown", "scroll('page_down')", "Scroll both down", id="twin.page_down", priority=True),
        Binding("escape", "leave", "Stop both, or go back", id="twin.leave", priority=True),
    ]

    def __init__(
        self,
        question: str,
        lanes: Sequence[Lane],
        gap: TwinGap,
        keep: Callable[[int], None],
        leave: Callable[[], None],
    ) -> None:
        """`question` is fit for the screen."""
        super().__init__(f"Twin lanes: {question}", lanes, keep, leave)
        self._lanes = lanes
        self._gap = gap
        self._texts: list[LaneText] = []

    def _parts(self) -> ComposeResult:
        with Horizontal():
            for index in range(len(self._lanes)):
                with Vertical(id=f"lane-{index}", classes="lane"):
                    yield Static(id=f"heading-{index}", classes="heading", markup=False)
                    yield LaneText(id=f"text-{index}")
                    yield Static(id=f"figures-{index}", classes="figures", markup=False)
        yield Static(id="gap", markup=False)
        yield Sparkline(id="kl")

    def on_mount(self) -> None:
        self._texts = list(self.query(LaneText))
        on_theme(self, self._show_headings)
        self._show_headings()
        self._ready = True
        self.show_news()

    def _show_headings(self) -> None:
        look = make_look(self.app.theme_variables)
        for index, each in enumerate(self._lanes):
            self.query_one(f"#heading-{index}", Static).update(each.heading(look))
        self._show_figures()

    def _show_texts(self) -> None:
        for text, each in zip(self._texts, self._lanes, strict=True):
            text.feed(each.release(self._gap))

    def _show_figures(self) -> None:
        look = make_look(self.app.theme_variables)
        for index, each in enumerate(self._lanes):
            self.query_one(f"#figures-{index}", Static).update(each.figures(look), layout=False)
        line, kl = self.query_one("#gap", Static), self.query_one("#kl", Sparkline)
        words = self._gap.words(look, max(each.tokens for each in self._lanes))
        line.update(words or Text("" if self._over else self.reading, look.muted), layout=False)
        # What reads as 0.0000 is no peak.
        kl.data = [round(nats, 4) for nats in peaks(self._gap.nats, max(8, kl.size.width))]
        what = "goes back" if self._over else "stops both"
        self._box.border_subtitle = f"← keeps left · → keeps right · ↑ ↓ · esc {what}"

    def action_scroll(self, where: str) -> None:
        """Scroll both texts."""
        for text in self._texts:
            getattr(text, f"scroll_{where}")(animate=False)

    def action_keep(self, index: int) -> None:
        """Keep the left reply (0) or the right one (1)."""
        self._keep(index)
