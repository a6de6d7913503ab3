"""The conversation as lines: finished blocks are laid out once, only the growing one again and again.

A reply is parsed and laid out on another thread, at most ten times a second and less often where one pass takes
long, so that neither keys nor the engine wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from app.sanitize import visible
from app.theme import Look, make_look
from app.widgets.lines import GUTTER
from app.widgets.markdown_blocks import MarkdownStream
from app.widgets.render import Item, Laid, Note, NoteKind, lay_out, lay_out_growing
from app.widgets.thought import GrowingThought, Thought

_PERIOD_S = 0.2
_REST = 30  # rest so many times as long as the last pass took of the processor: the engine needs the interpreter too


@dataclass(frozen=True)
class _Pass:
    """What one pass over a growing reply gave, and for which width and look.

    `thinking` says that `growing` begins with the line of a thought.
    """

    width: int
    look: Look
    done: list[Item]
    laid: list[Laid]
    growing: list[Strip]
    thinking: bool
    cpu_s: float


class Transcript(ScrollView, can_focus=True):
    """Shows notes and replies; follows the end unless the person scrolled up."""

    DEFAULT_CSS = """
    Transcript {
        background: $background;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        overflow-x: hidden;
        overflow-y: scroll;
    }
    """
    ALLOW_SELECT = True
    FOCUS_ON_CLICK = False  # what is typed after a click still goes to the prompt

    # As in Textual but without a layout of the whole screen at each change: only the scroll bar depends on it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._items: list[Item] = []
        self._laid: list[Laid] = []  # of each item, as soon as the width is known
        self._lines: list[Strip] = []
        self._growing: list[Strip] = []
        self._thinking = False
        self._unfolded = False
        self._carry: Text | None = None
        self._width = 0
        self._look: Look | None = None
        self._reply: _Reply | None = None
        self._follow = True

    # What is shown

    def add(self, kind: NoteKind, text: str) -> None:
        """Add a note (see `render.Note`). While a reply grows it waits for the reply's end."""
        note = Note(kind, visible(text))
        if self._reply is not None:
            self._reply.after.append(note)
            return
        self._append(note)
        self._updated(follow=kind == "user")

    def clear(self) -> None:
        """Empty the view. A reply that is growing must have been ended before."""
        self._items, self._laid, self._lines, self._growing = [], [], [], []
        self._carry = None
        self._updated(follow=True)

    def begin_reply(self, name: str) -> None:
        """Begin a reply under that name; `feed` and `end_reply` follow."""
        self.add("name", name)
        self._reply = reply = _Reply(self._unfolded)
        self.run_worker(self._write(reply), group="reply")

    def think(self, text: str, tokens: int, seconds: float) -> None:
        """Add text, already sanitised, to the thought that the reply begins with, and its length so far."""
        if self._reply is not None:
            self._reply.thought_pending.append((text, tokens, seconds))
            self._reply.wake.set()

    def feed(self, text: str) -> None:
        """Add text, already sanitised, to the reply, whose thought has ended."""
        if self._reply is not None and text:
            self._reply.pending.append(text)
            self._reply.wake.set()

    def end_reply(self) -> None:
        """No more text comes. What is pending is still shown, then the notes that waited."""
        if self._reply is not None:
            self._reply.ended.set()
            self._reply.wake.set()

    def toggle_thoughts(self) -> None:
        """Unfold all thoughts, also those to come, or fold them."""
        self._unfolded = not self._unfolded
        if self._reply is not None:
            self._reply.unfold(self._unfolded)
        for index, item in enumerate(self._items):
            if isinstance(item, Thought):
                self._items[index] = replace(item, unfolded=self._unfolded)
        self._relay()

    @property
    def writing(self) -> bool:
        """Whether some of a reply is not on the screen yet."""
        return self._reply is not None

    @property
    def text(self) -> str:
        """All that is shown, as plain lines."""
        return "\n".join(strip.text.rstrip() for strip in (*self._lines, *self._growing))

    # Laying out

    async def _write(self, reply: _Reply) -> None:
        while True:
            await reply.wake.wait()
            reply.wake.clear()
            ended = reply.ended.is_set()
            text, thoughts = "".join(reply.pending), reply.thought_pending.copy()
            reply.pending.clear()
            reply.thought_pending.clear()
            result = await asyncio.to_thread(self._pass, reply, thoughts, text, ended)
            self._apply(result)
            if ended:
                break
            rest = max(_PERIOD_S, _REST * result.cpu_s)
            try:
                await asyncio.wait_for(reply.ended.wait(), rest)
            except TimeoutError:
                continue
        self._reply = None
        for note in reply.after:
            self._append(note)
        self._updated()

    def _pass(self, reply: _Reply, thoughts: list[tuple[str, int, float]], text: str, ended: bool) -> _Pass:
        """Runs on another thread; touches nothing of the widget but what it reads here."""
        started, width, look, carry = time.thread_time(), self._width, self._current_look(), self._carry
        done = reply.advance(thoughts, text, ended)
        laid, carry = _lay_out_all(done, width, look, carry, {})
        growing = lay_out_growing(reply.thought, width, look) if reply.thought is not None else []
        blocks, _ = _lay_out_all(list(reply.stream.growing), width, look, carry, {})
        growing += _strips(blocks)
        return _Pass(width, look, done, laid, growing, reply.thought is not None, time.thread_time() - started)

    def _apply(self, result: _Pass) -> None:
        if (result.width, result.look) == (self._width, self._look):
            self._items += result.done
            for laid in result.laid:
                self._keep(laid)
            self._growing = result.growing
        else:  # the window changed meanwhile; the growing block follows with the next pass
            for item in result.done:
                self._append(item)
            self._growing = []
        self._thinking = result.thinking and bool(self._growing)
        self._updated()

    def _append(self, item: Item) -> None:
        last = self._items[-1] if self._items else None
        if isinstance(item, Note) and isinstance(last, Note) and item.kind == last.kind == "notice":
            item = replace(item, gap=False)
        self._items.append(item)
        if self._width:
            self._keep(lay_out(item, self._width, self._current_look(), self._carry))

    def _keep(self, laid: Laid) -> None:
        self._laid.append(laid)
        self._lines += laid.strips
        self._carry = laid.carry

    def _current_look(self) -> Look:
        if self._look is None:
            self._look = make_look(self.app.theme_variables)
        return self._look

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._restyle())

    def _restyle(self) -> None:
        self._look = None
        self._relay()

    def on_resize(self, event: events.Resize) -> None:
        width = self.scrollable_content_region.width
        if width and width != self._width:
            self._width = width
            self._relay()
        self._keep_following()

    def _relay(self) -> None:
        self.run_worker(self._lay_out_again(), group="relay", exclusive=True)

    async def _lay_out_again(self) -> None:
        width, look, items = self._width, self._current_look(), list(self._items)
        if not width:
            return
        known = {id(laid.item): laid for laid in self._laid if (laid.width, laid.look) == (width, look)}
        laid, _ = await asyncio.to_thread(_lay_out_all, items, width, look, None, known)
        since = self._items[len(items) :]
        if self._items[: len(items)] != items or (width, look) != (self._width, self._look):
            return  # cleared, or changed again: a later pass does it
        self._laid, self._lines, self._carry = [], [], None
        for each in laid:
            self._keep(each)
        self._items = items
        for item in since:
            self._append(item)
        if self._reply is not None:
            self._reply.wake.set()
        self._updated()

    def _updated(self, follow: bool = False) -> None:
        self.virtual_size = Size(self._width, len(self._lines) + len(self._growing))
        self._follow = self._follow or follow or self.scroll_y >= self.max_scroll_y
        self._keep_following()
        self.refresh()

    def _keep_following(self) -> None:
        if self._follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)

    def watch_virtual_size(self, size: Size) -> None:
        self.vertical_scrollbar.window_virtual_size = size.height

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follow = new_value >= self.max_scroll_y

    def on_click(self, event: events.Click) -> None:
        """Unfold or fold the thought whose line is clicked."""
        row = event.y + self.scroll_offset.y
        if self.text_selection is not None:
            return
        if self._reply is not None and self._thinking and row == len(self._lines):
            self._reply.unfold(not self._reply.unfolded)
            return
        for index, laid in enumerate(self._laid):
            if row == 0 and isinstance(item := self._items[index], Thought):
                self._items[index] = replace(item, unfolded=not item.unfolded)
                self._follow = False  # the line stays where it was clicked
                self._relay()
            row -= len(laid.strips)

    # Drawing and selecting

    def render_lines(self, crop: Region) -> list[Strip]:
        # Every line is complete as it is kept; Textual's own way would take each apart again to look for borders.
        strips = [self._visible_line(y + self.scroll_offset.y) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self.background_colors[1]) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        # Asked for when the mouse selects; the offsets are costly to make, and drawing does not need them.
        row = y + self.scroll_offset.y
        return self._visible_line(row).apply_offsets(0, row)

    def _visible_line(self, row: int) -> Strip:
        width, base = self.scrollable_content_region.width, self._current_look().text
        strip = self._line(row)
        if strip is None:
            return Strip.blank(width, base)
        if strip.cell_length != width:
            strip = strip.adjust_cell_length(width, base)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            return _selected(strip, *span, self.screen.get_component_rich_style("screen--selection"))
        return strip

    def _line(self, row: int) -> Strip | None:
        if row < len(self._lines):
            return self._lines[row]
        row -= len(self._lines)
        return self._growing[row] if row < len(self._growing) else None

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines = (strip.text.rstrip() for strip in (*self._lines, *self._growing))
        extracted = selection.extract("\n".join(lines)).split("\n")
        margin = " " * GUTTER
        if selection.start is None or selection.start.x == 0:
            extracted[0] = extracted[0].removeprefix(margin)
        return "\n".join([extracted[0], *(line.removeprefix(margin) for line in extracted[1:])]), "\n"


class _Reply:
    """A reply that is growing. `advance` runs on another thread, and `stream` and `thought` are its own."""

    def __init__(self, unfolded: bool) -> None:
        self.stream = MarkdownStream()
        self.thought: GrowingThought | None = None
        self.thought_pending: list[tuple[str, int, float]] = []
        self.pending: list[str] = []
        self.unfolded = unfolded
        self.after: list[Note] = []
        self.wake = asyncio.Event()
        self.ended = asyncio.Event()

    def unfold(self, unfolded: bool) -> None:
        """Show the thought that the reply begins with unfolded, or folded."""
        self.unfolded = unfolded
        self.wake.set()

    def advance(self, thoughts: list[tuple[str, int, float]], text: str, ended: bool) -> list[Item]:
        """Take what came; returns the items that are now finished."""
        for thought in thoughts:
            if self.thought is None:
                self.thought, self.stream = GrowingThought(), MarkdownStream(gap=True)
            self.thought.feed(*thought)
        done: list[Item] = []
        if self.thought is not None:
            self.thought.unfolded = self.unfolded
            if text or ended:
                done.append(self.thought.ended(answered=bool(text)))
                self.thought = None
        return [*done, *self.stream.feed(text, ended)]


def _lay_out_all(
    items: list[Item], width: int, look: Look, carry: Text | None, known: Mapping[int, Laid]
) -> tuple[list[Laid], Text | None]:
    """Lay out items that follow each other; `known` has those that need not be, by the identity of the item."""
    laid: list[Laid] = []
    for item in items:
        laid.append(known.get(id(item)) or lay_out(item, width, look, carry))
        carry = laid[-1].carry
    return laid, carry


def _strips(laid: list[Laid]) -> list[Strip]:
    return [strip for each in laid for strip in each.strips]


def _selected(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """`strip` with the characters from `start` to `end` (-1: to the end) in that style."""
    text = strip.text
    first = cell_len(text[:start])
    last = strip.cell_length if end == -1 else cell_len(text[:end])
    middle = Strip(Segment.apply_style(strip.crop(first, last), post_style=style), last - first)
    return Strip.join([strip.crop(0, first), middle, strip.crop(last)])
