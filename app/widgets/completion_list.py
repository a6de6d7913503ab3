"""The list above the prompt of what can follow there."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.widgets import OptionList

from app.completion import Choice, Completions
from app.sanitize import visible
from app.theme import make_look, on_theme


class CompletionList(OptionList, can_focus=False):
    """Shows the choices while the prompt keeps the focus; is not there while there are none."""

    DEFAULT_CSS = """
    CompletionList {
        display: none;
        height: auto;
        max-height: 10;
        margin: 0 1;
        padding: 0 1;
        border: round $border;
        border-subtitle-color: $foreground 65%;
        background: $background;
        scrollbar-size-vertical: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-highlighted { text-style: bold; }
    }
    """

    def __init__(self, take: Callable[[], object]) -> None:
        """`take` is called when a choice is clicked."""
        super().__init__(id="completions", markup=False)
        self._take = take
        self.border_subtitle = "tab takes it · ↑↓ choose · esc closes"
        self.completions: Completions | None = None
        self.moved = False
        """Whether the person has chosen among them."""

    @property
    def choice(self) -> Choice | None:
        """The choice that is highlighted; None while the list is not shown."""
        if self.completions is None or self.highlighted is None:
            return None
        return self.completions.choices[self.highlighted]

    @property
    def takes_arrows(self) -> bool:
        """Whether there is anything to choose."""
        return self.completions is not None and len(self.completions.choices) > 1

    def show(self, completions: Completions | None) -> None:
        """Show these, or with None nothing."""
        if completions == self.completions:
            return
        self.completions, self.moved = completions, False
        self.display = completions is not None
        if completions is not None:
            self.set_options(self._rows_of(completions))
            self.highlighted = 0

    def on_mount(self) -> None:
        on_theme(self, self._recolour)

    def _recolour(self) -> None:
        if self.completions is not None:
            for index, line in enumerate(self._rows_of(self.completions)):
                self.replace_option_prompt_at_index(index, line)

    def _rows_of(self, completions: Completions) -> list[Text]:
        look = make_look(self.app.theme_variables)
        room = min(32, max(len(choice.label) for choice in completions.choices))
        return [
            Text.assemble((visible(each.label).ljust(room), look.primary), "  ", (visible(each.help), look.muted))
            for each in completions.choices
        ]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take()

    def move(self, step: int) -> None:
        """Highlight the next choice or, with -1, the one before; after the last comes the first."""
        self.moved = True
        if step > 0:
            self.action_cursor_down()
        else:
            self.action_cursor_up()
