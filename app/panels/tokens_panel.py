"""The token panel: the reply as tokens, how likely each was, what else there was, and going on from there."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message

from app.panels.body import Body
from app.panels.reply_trace import ReplyTrace, branch_text
from app.panels.token_detail import Alternatives, TokenDetail
from app.panels.token_heat import heat_legend, heat_level, heat_styles, tenths
from app.panels.token_view import TokenView
from app.theme import make_look, on_theme


class TokensPanel(Vertical):
    """Shows the tokens of the last reply; works only while it is open. The mark follows the end until it is moved."""

    DEFAULT_CSS = """
    TokensPanel { background: $background; padding: 0 1; }
    TokensPanel Horizontal { height: 1fr; }
    TokensPanel TokenView { width: 1fr; }
    TokensPanel #token-legend { height: 1; }
    """
    HELP = """# Tokens

    The last reply by tokens, coloured by how likely each was; beside them the facts of the marked one and what else
    the model might have said. Choosing another one lets the reply go on from there, as a branch."""
    BORDER_TITLE = "Tokens"
    BORDER_SUBTITLE = "tab enters · ⏎ alternatives, ⏎ picks one · d digits"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "The token before", show=False, id="tokens.left"),
        Binding("right", "move(1)", "The next token", show=False, id="tokens.right"),
        Binding("up", "move_line(-1)", "A line up", show=False, id="tokens.up"),
        Binding("down", "move_line(1)", "A line down", show=False, id="tokens.down"),
        Binding("home", "go(0)", "The first token", show=False, id="tokens.first"),
        Binding("end", "go(-1)", "The last token", show=False, id="tokens.last"),
        Binding("enter", "choose", "Choose among the alternatives", show=False, id="tokens.choose"),
        Binding("d", "toggle_digits", "Show or hide probabilities as digits", show=False, id="tokens.digits"),
    ]

    class BranchFrom(Message):
        """The person wants another token in the last reply, and it to go on from there: it begins with `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, trace: ReplyTrace, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._trace = trace
        self._view = TokenView(self._style, self._suffix, id="reply-tokens")
        self._detail = TokenDetail(trace)
        self._shown: object = None
        """The list of ids that the view shows: each reply has a new one."""
        self._digits: bool | None = None
        """What the person said of digits, if anything."""
        self._suffixes = False
        self._heat: list[Style] = []

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._view
            yield self._detail
        yield Body(id="token-legend")

    def on_mount(self) -> None:
        on_theme(self, self._recolour)

    @property
    def digits(self) -> bool:
        """Whether probabilities are shown as digits too: where colours cannot be mixed, unless the person says else."""
        return self.app.native_ansi_color if self._digits is None else self._digits

    def show_reply(self) -> None:
        """Take what is new in the trace."""
        if self.display:
            self._draw()

    def on_show(self) -> None:
        self._draw()

    def action_toggle_digits(self) -> None:
        """Show probabilities as digits, or hide them."""
        self._digits = not self.digits
        self._draw()

    def action_move(self, by: int) -> None:
        """Move the mark by that many tokens."""
        self._mark(self._at + by)

    def action_move_line(self, by: int) -> None:
        """Move the mark up or down."""
        if self._view.count:
            line = self._view.line_of(self._at) + by
            found = self._view.token_at(line, self._view.column_of(self._at))
            self._mark(self._at if found is None else found)

    def action_go(self, index: int) -> None:
        """Move the mark to the first token, or to the last."""
        self._mark(index % max(1, self._view.count))

    def action_choose(self) -> None:
        """Go to the alternatives of the marked token."""
        self._mark(self._at)
        self._detail.enter()

    def on_alternatives_left(self, event: Alternatives.Left) -> None:
        event.stop()
        self._view.focus()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._view:
            found = self._view.token_at(event.y + self._view.scroll_offset.y, event.x)
            if found is not None:
                self._mark(found)

    def on_token_detail_chosen(self, event: TokenDetail.Chosen) -> None:
        event.stop()
        trace = self._trace
        if trace.vocabulary is not None and event.index < len(trace):
            text = branch_text(trace.vocabulary, trace.begun, trace.ids, event.index, event.id)
            self.post_message(self.BranchFrom(text))

    @property
    def _at(self) -> int:
        """The marked token; the last one while the mark follows the end."""
        return max(0, self._view.count - 1) if self._view.cursor is None else self._view.cursor

    def _mark(self, index: int) -> None:
        if self._view.count:
            self._view.cursor = min(self._view.count - 1, max(0, index))
            self._view.reveal()
            self._view.refresh()
            self._detail.show(self._at)

    def _draw(self) -> None:
        trace, view, look = self._trace, self._view, make_look(self.app.theme_variables)
        self._heat = list(heat_styles(look))
        if self.digits != self._suffixes:
            self._suffixes = self.digits
            view.lay_out()
            view.reveal()
        if trace.ids is not self._shown:
            self._shown = trace.ids
            view.begin(trace.vocabulary)
            self._detail.show_words("Each token is told of once the reply has ended, or where a key marks one.")
        view.append(trace.ids[view.count :])
        if view.cursor is None:
            view.reveal()
        if view.cursor is not None or trace.ended or not trace.prompt:
            self._detail.show(self._at)
        self.query_one("#token-legend", Body).show(heat_legend(look, self.digits))

    def _recolour(self) -> None:
        self._draw()
        self._view.refresh()

    def _style(self, index: int) -> Style:
        return self._heat[heat_level(self._trace.logprobs[index])]

    def _suffix(self, index: int) -> str:
        return tenths(self._trace.logprobs[index]) if self._suffixes else ""
