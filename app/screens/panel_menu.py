"""The menu of panels: one key opens or closes one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.panels.names import PANELS
from app.theme import make_look, on_theme


class PanelMenu(ModalScreen[str | None]):
    """Ends with the name of the panel to open or close, None for none.

    `shown` are those that are open, `keys` has for each what does the same in the chat, or "".
    """

    DEFAULT_CSS = """
    PanelMenu { align: center middle; }
    PanelMenu Vertical {
        width: 72; max-width: 96%; height: auto; max-height: 92%; padding: 1 2;
        border: round $border; background: $background; border-title-color: $primary;
        border-subtitle-color: $foreground 65%;
    }
    PanelMenu OptionList {
        height: auto; background: $background; text-wrap: nowrap; text-overflow: ellipsis;
        &:focus { background-tint: transparent; }
    }
    """
    HELP = """# Panels

    All views of what runs, those that are open with a full dot; the letter opens or closes one, and so does enter.
    Opened from here, a panel also has the focus, so that its own keys work at once."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f7,q", "dismiss", "Close", id="panels.close"),
        *(
            Binding(panel.key, f"dismiss('{name}')", panel.title, show=False, id=f"panels.{name}")
            for name, panel in PANELS.items()
        ),
    ]

    def __init__(self, shown: Collection[str], keys: Mapping[str, str]) -> None:
        super().__init__()
        self._shown = shown
        self._keys = keys

    def on_mount(self) -> None:
        on_theme(self, self._recolour)

    def _recolour(self) -> None:
        for option in self._options():
            self.query_one(OptionList).replace_option_prompt(str(option.id), option.prompt)

    def _options(self) -> list[Option]:
        look = make_look(self.app.theme_variables)
        return [
            Option(
                Text.assemble(
                    ("● " if name in self._shown else "○ ", look.primary if name in self._shown else look.faint),
                    (f"{panel.key}  ", look.primary),
                    (f"{panel.title:<9}", ""),
                    (f"{self._keys[name]:<4}", look.primary),
                    (panel.help, look.muted),
                ),
                id=name,
            )
            for name, panel in PANELS.items()
        ]

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Panels"
            box.border_subtitle = "in a panel: z whole screen · < > size · esc back"
            yield OptionList(*self._options(), markup=False, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)
