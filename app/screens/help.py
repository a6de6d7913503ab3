"""The help: what is seen where the person is and the keys that work there, then all other keys and the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget

from app.guide import guide_rows
from app.help_topics import Topic
from app.keys import KeyBinding
from app.screens.slash_commands import COMMANDS
from app.theme import make_look

Rows = Sequence[tuple[str, str]]


class HelpScreen(ModalScreen[None]):
    """`known` are all bindings, `keys` those in effect as they are shown, by the ids of bindings."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll {
        width: 76; max-width: 96%; height: auto; max-height: 92%;
        padding: 1 2; border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 65%; scrollbar-size-vertical: 1;
    }
    HelpScreen HelpText { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close", id="help.close"),
    ]

    def __init__(self, topic: Topic, known: Sequence[KeyBinding], keys: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._topic = topic
        self.sections = tuple((head, rows) for head, rows in _sections(topic, known, keys) if rows)
        """What is listed: headings, each with keys or commands and what they do."""

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = f"Help · {self._topic.title}"
            box.border_subtitle = "↑ ↓ scroll · esc closes"
            yield HelpText(self._topic.text, self.sections)


class HelpText(Widget):
    """A text, and sections of keys below it."""

    def __init__(self, text: str, sections: Sequence[tuple[str, Rows]]) -> None:
        super().__init__()
        self._text = text
        self._sections = sections

    def render(self) -> RenderResult:
        look = make_look(self.app.theme_variables)
        parts: list[Text | Table] = [Text(self._text, look.text)] if self._text else []
        widest = max(len(key) for _, rows in self._sections for key, _ in rows)
        for head, rows in self._sections:
            parts.append(Text(f"\n{head}" if parts else head, look.accent))
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True, style=look.primary, width=min(widest, 18))
            grid.add_column(style=look.text)
            for key, what in rows:
                grid.add_row(Text(key), Text(what))
            parts.append(grid)
        return Group(*parts)


def _sections(
    topic: Topic, known: Sequence[KeyBinding], keys: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Rows]]:
    def rows(place: str, here: bool) -> Rows:
        return [
            (", ".join(keys[each.id]), each.title)
            for each in known
            if each.place == place and (each.id in topic.ids) is here
        ]

    if "prompt.send" in topic.ids:
        yield "To begin", guide_rows(keys)
    places = dict.fromkeys(id.partition(".")[0] for id in topic.ids)
    yield "Here", [row for place in places for row in rows(place, here=True)]
    yield "In the chat", rows("chat", here=False)
    yield "Everywhere", rows("app", here=False)
    commands = ((f"/{name}", f"{each.usage}  {each.help}".strip()) for name, each in COMMANDS.items())
    yield "Commands, typed as a message", list(commands)
