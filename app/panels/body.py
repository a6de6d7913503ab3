"""The text of a panel, changed often."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static


class Body(Static):
    """Has the screen laid out anew only where the text needs another height: that takes as long as many changes."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)

    def show(self, text: Text) -> None:
        """Show this text from now on."""
        self.update(text, layout=False)
        self.clear_cached_dimensions()
        if self.get_content_height(self.container_size, self.app.size, self.size.width) != self.size.height:
            self.refresh(layout=True)
