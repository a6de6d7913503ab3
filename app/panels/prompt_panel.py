"""The prompt panel: what the model was given, token by token, and how much of it was in the KV cache already."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from app.panels.body import Body
from app.panels.reply_trace import ReplyTrace
from app.panels.token_text import subscript
from app.panels.token_view import TokenView
from app.theme import Look, make_look, on_theme
from app.units import format_count


class PromptPanel(Vertical):
    """Shows the prompt of the last reply; works only while it is open."""

    DEFAULT_CSS = """
    PromptPanel { background: $background; padding: 0 1; }
    PromptPanel TokenView { height: 1fr; }
    PromptPanel Static { height: auto; width: 100%; }
    """
    HELP = """# Prompt

    What the model was given for the last reply, token by token, with the special tokens marked.
    What was still in the KV cache looks different from what had to be computed."""
    BORDER_TITLE = "Prompt"
    BORDER_SUBTITLE = "tab enters · i token ids"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_tokens('up')", "A line up", show=False, id="prompt_panel.up"),
        Binding("down", "scroll_tokens('down')", "A line down", show=False, id="prompt_panel.down"),
        Binding("home", "scroll_tokens('home')", "To the beginning", show=False, id="prompt_panel.home"),
        Binding("end", "scroll_tokens('end')", "To the end", show=False, id="prompt_panel.end"),
        Binding("i", "toggle_ids", "Show or hide the ids of tokens", show=False, id="prompt_panel.ids"),
    ]

    def __init__(self, trace: ReplyTrace, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.display = False
        self._trace = trace
        self._look = make_look({})
        self._ids_shown = False
        self._shown: tuple[int, ...] = ()
        self._control: frozenset[int] = frozenset()
        self._added: frozenset[int] = frozenset()

    def compose(self) -> ComposeResult:
        yield Body(id="prompt-head")
        yield TokenView(self._style, self._suffix, id="prompt-tokens")

    def on_mount(self) -> None:
        on_theme(self, self._recolour)

    def show_reply(self) -> None:
        """Take what is new in the trace."""
        if self.display:
            self._draw()

    def on_show(self) -> None:
        self._draw()

    def action_toggle_ids(self) -> None:
        """Show the ids of tokens, or hide them."""
        self._ids_shown = not self._ids_shown
        self.query_one(TokenView).lay_out()

    def action_scroll_tokens(self, where: str) -> None:
        """Scroll up, down, home or end."""
        getattr(self.query_one(TokenView), f"scroll_{where}")(animate=False)

    def _draw(self) -> None:
        trace, vocabulary = self._trace, self._trace.vocabulary
        self._look = look = make_look(self.app.theme_variables)
        if trace.prompt is not self._shown:
            self._shown = trace.prompt
            self._control = frozenset(() if vocabulary is None else vocabulary.control.values())
            self._added = frozenset(() if vocabulary is None else vocabulary.user_defined.values())
            view = self.query_one(TokenView)
            view.begin(vocabulary)
            view.append(trace.prompt)
            view.reveal()
        special = sum(id in self._control for id in trace.prompt)
        self.query_one(Body).show(prompt_head(trace, special, look))

    def _recolour(self) -> None:
        self._draw()
        self.query_one(TokenView).refresh()

    def _style(self, index: int) -> Style:
        look = self._look
        if self._shown[index] in self._control:
            return look.accent + Style(bold=True)
        if self._shown[index] in self._added:
            return look.secondary + Style(bold=True)
        return look.muted if index < self._trace.reused else look.text + Style(underline=index == self._trace.reused)

    def _suffix(self, index: int) -> str:
        return subscript(self._shown[index]) if self._ids_shown else ""


def prompt_head(trace: ReplyTrace, special: int, look: Look) -> Text:
    """How long the prompt is, and what its colours mean."""
    if not trace.prompt:
        return Text(
            "No prompt yet: what a model is given is shown here, token by token, with the first reply.", look.muted
        )
    return Text.assemble(
        (format_count(len(trace.prompt), "token"), look.text),
        (f" · {trace.reused:,} reused from the KV cache", look.muted),
        (f" · {len(trace.prompt) - trace.reused:,} read anew", look.text),
        (", the first underlined" if trace.reused else "", look.muted),
        (f" · {special:,} special", look.accent + Style(bold=True)),
    )
