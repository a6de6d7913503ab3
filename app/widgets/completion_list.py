"""The list above the prompt of what can follow there."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.completion import Choice, Completions
from app.sanitize import visible
from app.theme import make_look


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
        border-subtitle-color: $foreground 55%;
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
            look = make_look(self.app.theme_variables)
            room = max(len(choice.label) for choice in completions.choices)
            self.clear_options()
            self.add_options(
                Option(
                    Text.assemble(
                        (visible(each.label).ljust(min(room, 32)), look.primary), "  ", (visible(each.help), look.muted)
                    )
                )
                for each in completions.choices
            )
            self.highlighted = 0

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
