"""The sidebar: a box to search in, the conversations below it, and a box for another title."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.worker import Worker

from app.sanitize import visible
from app.store.records import HistoryError
from app.widgets.conversation_list import WIDTH, ConversationList

if TYPE_CHECKING:
    from app.screens.history_control import HistoryControl

_PAGE = 50
_KEYS = "enter opens · n new · r rename\nd delete · u undo · / search"


class HistorySidebar(Vertical):
    """The conversations of the history, which `history` finds, opens and changes."""

    DEFAULT_CSS = f"""
    HistorySidebar {{
        dock: left; width: {WIDTH + 5}; height: 100%; margin: 0 0 1 0; padding: 0 1; display: none;
        border: round $border; border-title-color: $primary; background: $background;
        &:focus-within {{ border: round $primary; }}
    }}
    HistorySidebar Input {{
        height: 1; border: none; padding: 0; margin: 0 0 1 0; background: $surface;
        &:focus {{ border: none; }}
    }}
    HistorySidebar #new-title {{ display: none; margin: 1 0 0 0; background: $primary 30%; }}
    HistorySidebar Static {{ height: auto; color: $foreground 65%; margin: 1 0 0 0; }}
    """
    HELP = """# Conversations

    All conversations of this machine, the newest first, with a box to search in; the dot marks the one on the screen.
    Enter opens the one at the cursor; what is deleted can be brought back for a week."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New conversation", show=False, id="history.new"),
        Binding("r", "rename", "Rename", show=False, id="history.rename"),
        Binding("d,delete", "delete", "Delete", show=False, id="history.delete"),
        Binding("u", "undo", "Bring back what was deleted", show=False, id="history.undo"),
        Binding("/", "search", "Search", show=False, id="history.search"),
        Binding("down", "enter_list", "To the list", show=False, id="history.list"),
        Binding("escape", "leave", "Back to the message", show=False, id="history.leave"),
    ]

    class Opened(Message):
        """A conversation was opened or begun."""

    class Left(Message):
        """The person goes back to the prompt."""

    def __init__(self, history: HistoryControl) -> None:
        super().__init__(id="history")
        self._history = history
        self._complete = False
        self._renamed = 0
        self._list = ConversationList()
        self._search = Input(placeholder="Search", id="search")
        self._title = Input(placeholder="Another title", select_on_focus=False, id="new-title")
        self._status = Static(_KEYS, markup=False)

    def compose(self) -> ComposeResult:
        self.border_title = "Conversations"
        yield self._search
        yield self._list
        yield self._title
        yield self._status

    # What is shown

    def enter(self) -> None:
        """Go into the list, which is filled anew."""
        self.reload()
        self._go_to(self._list)

    def reload(self) -> None:
        """Ask for the conversations again, if they are shown."""
        if self.display:
            self._find(keep=True)

    def mark(self, conversation: int) -> None:
        """Mark the conversation that is on the screen now."""
        self._list.mark(conversation)

    def _find(self, keep: bool) -> None:
        _: Worker[None] = self.run_worker(partial(self._fill, keep), group="find", exclusive=True)

    async def _fill(self, keep: bool) -> None:
        limit = max(_PAGE, len(self._list.hits)) if keep else _PAGE
        try:
            hits = await self._history.find(self._search.value, None, limit)
        except HistoryError as error:
            self._status.update(str(error))
            return
        self._complete = len(hits) < limit
        self._list.current = self._history.current
        self._list.fill(hits, keep)
        self._status.update(_KEYS if hits else "Nothing is found." if self._search.value else "There are none yet.")

    def on_conversation_list_near_end(self) -> None:
        if not self._complete:
            _: Worker[None] = self.run_worker(self._more, group="find", exclusive=True)

    async def _more(self) -> None:
        last = self._list.hits[-1].conversation if self._list.hits else None
        try:
            hits = await self._history.find(self._search.value, last, _PAGE)
        except HistoryError as error:
            self._status.update(str(error))
            return
        self._complete = len(hits) < _PAGE
        self._list.extend(hits)

    # What the person does

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input is self._search:
            self._find(keep=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.input is self._search:
            _: Worker[None] = self.run_worker(self._open_first, group="find", exclusive=True)
        else:
            self._history.rename(self._renamed, event.value)
            self.action_leave()

    async def _open_first(self) -> None:
        await self._fill(keep=False)  # what is listed may be older than what was typed
        self._list.action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._history.open(self._list.hits[event.option_index].conversation.id)
        self.post_message(self.Opened())

    def action_new(self) -> None:
        """Begin a conversation."""
        self._history.new()
        self.post_message(self.Opened())

    def action_rename(self) -> None:
        """Ask for another title."""
        if (chosen := self._list.chosen) is not None:
            self._renamed = chosen.id
            self._title.display = True
            self._status.update("enter renames · esc leaves it")
            self._title.value = visible(chosen.title)
            self._go_to(self._title)

    def action_delete(self) -> None:
        """Delete the chosen conversation."""
        if (chosen := self._list.chosen) is not None:
            self._history.delete(chosen)

    def action_undo(self) -> None:
        """Bring back what was deleted last."""
        self._history.undo()

    def action_search(self) -> None:
        """Go to the search."""
        self._go_to(self._search)

    def action_enter_list(self) -> None:
        """Go from the search to what was found."""
        self._go_to(self._list)

    def _go_to(self, widget: Widget) -> None:
        self.screen.set_focus(widget)  # at once: the next key is for it

    def action_leave(self) -> None:
        """Leave the box for a title, or the search, or the sidebar."""
        if self._title.has_focus:
            self._title.display = False
            self._status.update(_KEYS)
            self._go_to(self._list)
        elif self._search.value:
            self._search.value = ""
            self._go_to(self._list)
        else:
            self.post_message(self.Left())
