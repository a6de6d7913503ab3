"""One token of a reply: its id, its bytes, its probability, and what else could have been there."""

from __future__ import annotations

import math
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList

from app.panels.body import Body
from app.panels.reply_trace import ReplyTrace
from app.panels.token_text import hex_bytes, one_token
from app.theme import Look, make_look
from inference.vocabulary import Vocabulary

_BAR = 6
_MOST_BYTES = 16  # shown of a token


class Alternatives(OptionList):
    """The likeliest tokens of a place."""

    DEFAULT_CSS = """
    Alternatives {
        text-wrap: nowrap; text-overflow: ellipsis;
        height: 1fr; padding: 0; border: none; background: $background; scrollbar-size: 0 1;
        &:focus { border: none; background-tint: transparent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left", "leave", "Back to the tokens", show=False, id="alternatives.leave"),
    ]

    class Left(Message):
        """The person goes back."""

    def action_leave(self) -> None:
        """Go back to the tokens."""
        self.post_message(self.Left())


class TokenDetail(Vertical):
    """Shows one token of a trace."""

    DEFAULT_CSS = """
    TokenDetail { width: 50%; max-width: 36; padding: 0 0 0 1; border-left: solid $border; }
    TokenDetail Body { height: auto; }
    """

    class Chosen(Message):
        """The person wants the token `index` to be `id`."""

        def __init__(self, index: int, id: int) -> None:
            super().__init__()
            self.index = index
            self.id = id

    def __init__(self, trace: ReplyTrace) -> None:
        super().__init__()
        self._trace = trace
        self._index = 0
        self._ids: list[int] = []
        self._shown: object = None
        """The ids of the reply whose token is shown: each reply has a list of its own."""
        self._look: Look | None = None

    def compose(self) -> ComposeResult:
        yield Body(id="token-facts")
        yield Alternatives(id="alternatives", markup=False, compact=True)

    def show(self, index: int) -> None:
        """Show the token at that place; nothing where there is none."""
        trace, look, options = self._trace, make_look(self.app.theme_variables), self.query_one(Alternatives)
        if trace.vocabulary is None or index >= len(trace):
            self.show_words("No reply yet.")
            return
        vocabulary, chosen = trace.vocabulary, trace.ids[index]
        self.query_one(Body).show(token_facts(vocabulary, trace, index, look))
        if self._shown is trace.ids and (self._index, self._look) == (index, look):
            return
        self._shown, self._index, self._look = trace.ids, index, look
        found = trace.alternatives(index)
        self._ids = [id for id, _ in found]
        options.set_options(alternative_line(vocabulary, id, logprob, id == chosen, look) for id, logprob in found)
        if found:
            options.highlighted = self._ids.index(chosen) if chosen in self._ids else 0

    def show_words(self, words: str) -> None:
        """Show no token, and why."""
        self._shown, self._ids = None, []
        self.query_one(Body).show(Text(words, make_look(self.app.theme_variables).muted))
        self.query_one(Alternatives).clear_options()

    def enter(self) -> None:
        """Go to the alternatives, if there are any."""
        if self._ids:
            self.query_one(Alternatives).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._index, self._ids[event.option_index]))


def token_facts(vocabulary: Vocabulary, trace: ReplyTrace, index: int, look: Look) -> Text:
    """Place, id, text, bytes and probability of a token."""
    id, logprob = trace.ids[index], trace.logprobs[index]
    data = vocabulary.token_bytes(id)
    shown = hex_bytes(data[:_MOST_BYTES])[1:-1] + (f" … {len(data)} in all" if len(data) > _MOST_BYTES else "")
    out = Text()
    for name, value in (
        ("token", f"{index + 1:,} of {len(trace):,}"),
        ("text", one_token(vocabulary, id)),
        ("id", f"{id:,}"),
        ("bytes", shown or "none"),
        ("chance", f"{percent(logprob)}, logprob {logprob:.2f}"),
    ):
        out.append(f"{name:<7}", look.primary).append(value + "\n", look.text)
    return out.append("instead", look.primary)


def alternative_line(vocabulary: Vocabulary, id: int, logprob: float, chosen: bool, look: Look) -> Text:
    """A mark at what was chosen, a bar and the probability, the token and its id."""
    filled = round(_BAR * math.exp(logprob))
    return Text.assemble(
        ("● " if chosen else "  ", look.accent),
        ("━" * filled, look.primary),
        ("━" * (_BAR - filled), look.faint),
        (f"{percent(logprob):>7} ", ""),
        (one_token(vocabulary, id), ""),
        (f" {id}", look.muted),
    )


def percent(logprob: float) -> str:
    """A probability for people: `71.3%`, `<0.1%`."""
    share = math.exp(logprob) * 100
    return f"{share:.1f}%" if share >= 0.1 else "<0.1%"
