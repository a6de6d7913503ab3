"""A screen over the chat that shows replies while they are written, of which one may be kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from app.candidates import Candidate

_FIGURES_PERIOD_S = 0.25


class SideScreen(ModalScreen[int | None]):
    """Shows the replies under a title; dismissed with the place of the one to keep, or None.

    `keep` is asked to keep one, `leave` to stop or, if there is nothing to stop, to go back: whoever writes the replies
    closes the screen once they have ended. `reading` tells how far the prompt is read.
    """

    DEFAULT_CSS = """
    SideScreen { align: center middle; }
    SideScreen > Vertical {
        width: 100%; height: 100%; padding: 0 1; border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 65%;
    }
    """

    def __init__(
        self, title: str, candidates: Sequence[Candidate], keep: Callable[[int], None], leave: Callable[[], None]
    ) -> None:
        """`title` is fit for the screen."""
        super().__init__()
        self._title = title
        self._replies = candidates
        self._keep = keep
        self._leave = leave
        self._ready = False
        self._over = False
        self._figures_due = 0.0
        self.reading = ""

    def compose(self) -> ComposeResult:
        with Vertical() as self._box:
            self._box.border_title = Text(self._title, overflow="ellipsis")
            yield from self._parts()

    def _parts(self) -> ComposeResult:
        """The widgets in the box."""
        raise NotImplementedError

    def _show_texts(self) -> None:
        raise NotImplementedError

    def _show_figures(self) -> None:
        raise NotImplementedError

    def show_news(self) -> None:
        """Show what has come since the last call; figures change less often than anybody reads them."""
        if not self._ready:
            return
        self._show_texts()
        now, over = time.monotonic(), all(each.ended for each in self._replies)
        if now >= self._figures_due or over != self._over:
            self._figures_due, self._over = now + _FIGURES_PERIOD_S, over
            self._show_figures()

    def action_leave(self) -> None:
        """Stop what is being written; with nothing to stop, go back."""
        self._leave()

    def close(self, kept: int | None) -> None:
        """Dismiss the screen, as soon as it is there."""

        def dismiss() -> None:
            self.dismiss(kept)

        self.call_later(dismiss)
