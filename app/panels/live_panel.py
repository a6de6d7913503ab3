"""A panel with figures that change while it is looked at."""

from __future__ import annotations

from textual.containers import VerticalScroll

from app.theme import on_theme


class LivePanel(VerticalScroll):
    """Is drawn for new figures, another size and other colours, but only while it is open."""

    DEFAULT_CSS = """
    LivePanel { background: $background; padding: 0 1; scrollbar-size-vertical: 1; }
    LivePanel Static { width: 100%; height: auto; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False

    def _draw(self) -> None:
        raise NotImplementedError

    def _changed(self) -> None:
        """There are new figures."""
        if self.display:
            self._draw()

    def on_mount(self) -> None:
        on_theme(self, self._draw)

    def on_show(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()
