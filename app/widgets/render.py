"""Blocks to strips: every piece of the transcript, laid out for one width and one look."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from markdown_it.token import Token
from rich import box
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from app.theme import Look
from app.widgets.code import TAB_SIZE, highlight
from app.widgets.lines import Line, inner_width, strips
from app.widgets.markdown_blocks import Block, parse
from app.widgets.thought import GrowingThought, Thought, thought_strips

NoteKind = Literal["user", "name", "figures", "notice", "error", "title"]


@dataclass(frozen=True)
class Note:
    """Text of the application itself or of the person: shown as it is, never as Markdown.

    `gap` asks for an empty line above.
    """

    kind: NoteKind
    text: str
    gap: bool = True


Item = Block | Note | Thought


@dataclass(frozen=True)
class Laid:
    """An item laid out for a width and a look.

    `carry` is the last line of a block with an open end, which the next block goes on.
    """

    item: Item
    width: int
    look: Look
    strips: tuple[Strip, ...]
    carry: Text | None = None


def lay_out(item: Item, width: int, look: Look, carry: Text | None = None) -> Laid:
    """Lay `item` out for `width` cells. `carry` is the line that a joined block goes on from."""
    inner, console = inner_width(width), _console(look)
    if isinstance(item, Thought):
        return Laid(item, width, look, tuple(thought_strips(item, width, look, console)))
    if isinstance(item, Note):
        lines = _note_lines(item, inner, look, console)
        return Laid(item, width, look, tuple(strips(_with_gap(lines, item.gap), width, look)))
    if item.kind == "code":
        lines = _code_lines(item, inner, look, console)
        return Laid(item, width, look, tuple(strips(_with_gap(lines, item.gap), width, look)))
    tokens = parse(item.source, item.plain)
    for token in tokens:
        if token.type == "ordered_list_open" and token.level == 0 and item.number is not None:
            token.attrs["start"] = item.number
    document = _Markdown(tokens, look, carry + Text(item.joined or "") if carry is not None else None)
    lines = console.render_lines(document, console.options.update(width=inner, height=None), pad=False)
    while lines and not any(segment.text.strip() for segment in lines[0]):
        lines.pop(0)  # Rich puts an empty line above whatever has children
    last = None
    if item.open_end and lines:
        last = Text.assemble(*((segment.text, segment.style or "") for segment in lines.pop()))
        last.rstrip()
    return Laid(item, width, look, tuple(strips(_with_gap(lines, item.gap), width, look)), last)


def lay_out_growing(thought: GrowingThought, width: int, look: Look) -> list[Strip]:
    """Lay out a thought that the model is having."""
    return thought.strips(width, look, _console(look))


def _with_gap(lines: list[Line], gap: bool) -> list[Line]:
    return [[], *lines] if gap else lines


def _note_lines(note: Note, inner: int, look: Look, console: Console) -> list[Line]:
    text = note.text.expandtabs(TAB_SIZE)
    options = console.options.update(width=inner, height=None)

    def wrapped(style: Style, mark: str = "") -> list[Line]:
        content = Text(text, style, overflow="fold")
        lines = console.render_lines(content, options.update(width=inner - len(mark)), pad=False)
        return [[Segment(" " * len(mark) if index else mark, style), *line] for index, line in enumerate(lines)]

    match note.kind:
        case "user":
            bar = [Segment("▌", look.primary), Segment(" ")]
            body = console.render_lines(Text(text, overflow="fold"), options.update(width=inner - 2), pad=False)
            return [[*bar, *line] for line in body]
        case "name":
            return wrapped(look.secondary)
        case "figures":
            return wrapped(look.muted)
        case "error":
            return wrapped(look.error, "✗ ")
        case "title":
            return wrapped(look.primary + Style(bold=True))
        case _:
            return wrapped(look.muted, "· ")


def _code_lines(block: Block, inner: int, look: Look, console: Console) -> list[Line]:
    body = Padding(highlight(block.source, block.language, look), (0, 1), style=look.surface)
    lines = console.render_lines(body, console.options.update(width=inner, height=None), pad=True)
    if block.joined is not None:
        return lines
    label = f" {block.language}" if block.language else ""
    return [[Segment(label.ljust(inner)[:inner], look.muted + look.surface)], *lines]


@lru_cache(maxsize=4)
def _console(look: Look) -> Console:
    """A console that is only laid out with, never printed to."""
    bold = Style(bold=True)
    styles = {
        "markdown.h1": look.primary + Style(bold=True, underline=True),
        "markdown.h2": look.primary + bold,
        "markdown.h3": look.primary,
        "markdown.h4": bold,
        "markdown.h5": bold,
        "markdown.h6": bold,
        "markdown.code": look.accent,
        "markdown.strong": bold,
        "markdown.em": Style(italic=True),
        "markdown.s": Style(strike=True),
        "markdown.link": look.primary,
        "markdown.link_url": look.muted,
        "markdown.block_quote": look.muted,
        "markdown.item.bullet": look.primary,
        "markdown.item.number": look.primary,
        "markdown.hr": look.faint,
        "markdown.table.border": look.faint,
        "markdown.table.header": bold,
        "markdown.code_block": Style.null(),
    }
    return Console(theme=Theme(styles), color_system="truecolor", force_terminal=True, width=80, legacy_windows=False)


class _Paragraph(rich_markdown.Paragraph):
    """A paragraph that may go on a line begun before, and whose overlong words fold."""

    lead: Text | None = None

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> _Paragraph:
        paragraph = cls("left")
        if isinstance(markdown, _Markdown) and token.level == 0:
            paragraph.lead, markdown.lead = markdown.lead, None
        return paragraph

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.lead + self.text if self.lead is not None else self.text
        text.overflow = "fold"
        text.expand_tabs(TAB_SIZE)
        yield text


class _Heading(rich_markdown.Heading):
    LEVEL_ALIGN: ClassVar = {}


class _ListItem(rich_markdown.ListItem):
    """A list item whose number keeps its dot."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._marked("• ", "markdown.item.bullet", console, options)

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        marker = f"{number}. ".rjust(len(str(last_number)) + 2)
        yield from self._marked(marker, "markdown.item.number", console, options)

    def _marked(self, marker: str, style: str, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.elements, options.update(width=options.max_width - len(marker)), pad=False)
        for index, line in enumerate(lines or [[]]):
            yield Segment(" " * len(marker) if index else marker, console.get_style(style))
            yield from line
            yield Segment.line()


class _CodeBlock(rich_markdown.CodeBlock):
    look: Look

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> _CodeBlock:
        block = cls(token.info.strip(), "")
        assert isinstance(markdown, _Markdown)
        block.look = markdown.look
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = highlight(self.text.plain.removesuffix("\n"), self.lexer_name, self.look)
        yield Padding(code, (0, 1), style=self.look.surface)


class _Rule(rich_markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr", characters="─")


class _Table(rich_markdown.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, style="markdown.table.border")
        header = self.header.row.cells if self.header and self.header.row else []
        for cell in header:
            title = cell.content.copy()
            title.stylize("markdown.table.header")
            table.add_column(title, justify=cell.justify, overflow="fold")
        for row in self.body.rows if self.body else ():
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Markdown(rich_markdown.Markdown):
    """Rich's Markdown over tokens that are parsed already, with our own paragraphs, code, rules and tables."""

    elements: ClassVar = rich_markdown.Markdown.elements | {
        "paragraph_open": _Paragraph,
        "heading_open": _Heading,
        "list_item_open": _ListItem,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _Rule,
        "table_open": _Table,
    }

    def __init__(self, tokens: list[Token], look: Look, lead: Text | None) -> None:
        # Not super().__init__, which would build a parser and parse again.
        self.markup = ""
        self.parsed = tokens
        self.code_theme = self.inline_code_theme = ""
        self.justify = None
        self.style = "none"
        self.hyperlinks = False
        self.inline_code_lexer = None
        self.look = look
        self.lead = lead
