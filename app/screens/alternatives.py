"""Replies that are written at the same time, as tabs: one is looked at, and one may be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Static

from app.candidates import Candidate, together
from app.screens.side_screen import SideScreen
from app.theme import make_look, on_theme
from app.widgets.candidate_tabs import CandidateTabs
from app.widgets.transcript import Transcript

_LABEL = 19  # cells of a tab that tells its speed too


class AlternativesScreen(SideScreen):
    """Shows the candidates for the reply to `question`, of which one is looked at."""

    DEFAULT_CSS = """
    AlternativesScreen ContentSwitcher { height: 1fr; }
    AlternativesScreen Transcript { height: 1fr; }
    AlternativesScreen #figures { height: 1; }
    """
    HELP = """# Alternatives

    Several replies to one question, written at the same time. Left and right go from one to the next, enter keeps
    the one shown, which is written to its end while the others stop. They stay as branches beside it. Esc stops all;
    once nothing is being written it goes back to the reply that was there before."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "The reply before", id="alternatives.before", priority=True),
        Binding("right", "step(1)", "The reply after", id="alternatives.after", priority=True),
        Binding("enter", "keep", "Keep this reply", id="alternatives.keep", priority=True),
        Binding("escape", "leave", "Stop, or keep none of them", id="alternatives.leave", priority=True),
    ]

    def __init__(
        self,
        question: str,
        candidates: Sequence[Candidate],
        keep: Callable[[int], None],
        leave: Callable[[], None],
    ) -> None:
        """`question` is fit for the screen."""
        super().__init__(f"{len(candidates)} replies to {question}", candidates, keep, leave)
        self._candidates = candidates
        self._whole: set[int] = set()
        self._views: list[Transcript] = []
        self._tabs = CandidateTabs()
        self._figures = Static(id="figures", markup=False)
        self._later: int | None = None
        self.shown = 0

    def _parts(self) -> ComposeResult:
        yield self._tabs
        with ContentSwitcher(initial="reply-0"):
            for index, _ in enumerate(self._candidates):
                yield Transcript(id=f"reply-{index}")
        yield self._figures

    def on_mount(self) -> None:
        self._views = [self.query_one(f"#reply-{index}", Transcript) for index in range(len(self._candidates))]
        for view, each in zip(self._views, self._candidates, strict=True):
            view.begin_reply(each.answer.model)
        self._views[0].focus()
        on_theme(self, self._show_figures)
        self._ready = True
        self.show_news()

    def _show_texts(self) -> None:
        """Show what is new of the reply that is looked at."""
        candidate, view = self._candidates[self.shown], self._views[self.shown]
        # Before it is laid out for the first time a view has no width to put text into.
        if view.size.width and self.shown not in self._whole:
            thought, text = candidate.answer.release()
            if thought:
                view.think(thought, candidate.answer.thought_tokens, candidate.answer.thought_s)
            view.feed(text)
            if candidate.ended:
                self._whole.add(self.shown)
                view.end_reply(candidate.answer.message)

    def _show_figures(self) -> None:
        candidate = self._candidates[self.shown]
        short = len(self._candidates) * _LABEL > self.size.width - 4
        self._tabs.chosen, self._tabs.labels = self.shown, tuple(each.label(short) for each in self._candidates)
        look = make_look(self.app.theme_variables)
        left = candidate.words() if candidate.tokens or candidate.ended or not self.reading else self.reading
        right, room = together(self._candidates), self._figures.size.width
        line = Text(left, look.text)
        line.append(" " * max(2, room - len(left) - len(right)) + right, look.muted)
        self._figures.update(line, layout=False)
        keys = f"← → another · enter keeps it · esc {'keeps none' if self._over else 'stops all'}"
        if self._later is not None:
            keys = f"reply {self._later + 1} is kept once it has ended · esc stops it"
        self._box.border_subtitle = keys

    def on_candidate_tabs_clicked(self, event: CandidateTabs.Clicked) -> None:
        self._show(event.index)

    def action_step(self, step: int) -> None:
        """Go to the reply before (-1) or after (1), from the last to the first."""
        self._show((self.shown + step) % len(self._candidates))

    def _show(self, index: int) -> None:
        if not self._ready:  # a key that comes before the screen is there
            return
        self.shown, self._figures_due = index, 0.0
        self.query_one(ContentSwitcher).current = f"reply-{index}"
        self._views[index].focus()
        self.show_news()

    def keep_later(self, index: int) -> None:
        """Say that this reply is kept as soon as it is whole."""
        self._later, self._figures_due = index, 0.0

    def action_keep(self) -> None:
        """Keep the reply that is looked at."""
        self._keep(self.shown)
