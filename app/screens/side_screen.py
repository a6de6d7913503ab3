"""A screen over the chat that shows replies while they are written, of which one may be kept."""

from __future__ import annotations

from textual.screen import ModalScreen


class SideScreen(ModalScreen[int | None]):
    """Dismissed with the place of the reply to keep, or None. `reading` tells how far the prompt is read."""

    reading = ""

    def show_news(self) -> None:
        """Show what has come since the last call."""
        raise NotImplementedError

    def close(self, kept: int | None) -> None:
        """Dismiss the screen, as soon as it is there."""

        def dismiss() -> None:
            self.dismiss(kept)

        self.call_later(dismiss)
