"""The conversation as lines: finished blocks are laid out once, only the growing one again and again.

A reply is parsed and laid out on another thread, at most ten times a second and less often where one pass takes
long, so that neither keys nor the engine wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.worker import Worker

from app.sanitize import visible
from app.theme import Look, make_look
from app.widgets.column import Column, Entry, lay_out_all
from app.widgets.growing_reply import GrowingReply, Pass
from app.widgets.lines import GUTTER
from app.widgets.render import Item, Note, NoteKind, lay_out
from app.widgets.thought import Thought

_PERIOD_S = 0.2
_REST = 30  # rest so many times as long as the last pass took of the processor: the engine needs the interpreter too


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

    class NearTop(Message):
        """The person has scrolled up to where older messages begin, if there are any."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._column = Column()
        self._growing: list[Strip] = []
        self._thinking = False
        self._unfolded = False
        self._width = 0
        self._look: Look | None = None
        self._reply: GrowingReply | None = None
        self._writer: Worker[None] | None = None
        self._follow = True
        self._chosen: int | None = None
        self._chosen_rows = range(0)

    # What is shown

    def add(self, kind: NoteKind, text: str) -> None:
        """Add a note (see `render.Note`). While a reply grows it waits for the reply's end."""
        note = Note(kind, visible(text))
        if self._reply is not None:
            self._reply.after.append(note)
            return
        self._append(note)
        self._updated()

    def show(self, items: Iterable[Item], message: int) -> None:
        """Add a message and go to it. No reply may be growing."""
        for item in items:
            self._append(item, message)
        self._updated(follow=True)

    def clear(self) -> None:
        """Empty the view. A reply that is growing must have been ended before."""
        self._column, self._growing = Column(), []
        self.choose(None)
        self._updated(follow=True)

    def cut(self, message: int) -> None:
        """Take away a message and all that is below it. A reply that is growing must have been ended before."""
        self._column.cut(message)
        self.choose(None)
        self._updated(follow=True)

    async def put(self, messages: Sequence[tuple[int, Sequence[Item]]], above: bool = False) -> None:
        """Show messages, as their ids and items, below all others or above the first one."""
        entries = [Entry(item, message) for message, items in messages for item in items]
        while True:
            width, look = self._width, self._current_look()
            items = [entry.item for entry in entries]
            laid = await asyncio.to_thread(lay_out_all, items, width, look) if width else []
            if (width, look) == (self._width, self._current_look()):
                break
        if above:
            count = self._column.insert_above(entries, laid)
            self._updated()
            if not self._follow:
                self.scroll_to(y=self.scroll_offset.y + count, animate=False, immediate=True)
        else:
            for entry, each in zip_longest(entries, laid):
                self._column.append(entry, each)
            self._updated()

    def choose(self, message: int | None) -> None:
        """Mark a message and bring it into view, or mark none."""
        self._chosen = message
        self._find_chosen()
        if rows := self._chosen_rows:
            region = Region(0, rows.start, self._width, len(rows))
            self.scroll_to_region(region, animate=False, immediate=True, force=True, x_axis=False, top=False)
        self.refresh()

    def begin_reply(self, name: str) -> None:
        """Begin a reply under that name; `feed` and `end_reply` follow."""
        self.add("name", name)
        self._reply = reply = GrowingReply(self._column.entries[-1].item, self._unfolded)
        self._writer = self.run_worker(self._write(reply), group="reply")

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

    def end_reply(self, message: int | None) -> None:
        """No more text comes: what is pending is still shown, then the notes that waited. `message` is what it became.

        Without one, what there is of it belongs to no message.
        """
        if self._reply is not None:
            self._reply.message = message
            self._reply.ended.set()
            self._reply.wake.set()

    async def written(self) -> None:
        """Wait until a reply that has ended is all on the screen."""
        if self._writer is not None:
            await self._writer.wait()

    def toggle_thoughts(self) -> None:
        """Unfold all thoughts, also those to come, or fold them."""
        self._unfolded = not self._unfolded
        if self._reply is not None:
            self._reply.unfold(self._unfolded)
        for index, entry in enumerate(self._column.entries):
            if isinstance(entry.item, Thought):
                self._replace_item(index, replace(entry.item, unfolded=self._unfolded))
        self._relay()

    @property
    def writing(self) -> bool:
        """Whether some of a reply is not on the screen yet."""
        return self._reply is not None

    @property
    def unfolded(self) -> bool:
        """Whether thoughts are shown unfolded."""
        return self._unfolded

    @property
    def first_message(self) -> int | None:
        """The first message shown."""
        return self._column.first_message

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        return len(self._column.lines) + len(self._growing)

    @property
    def text(self) -> str:
        """All that is shown, as plain lines."""
        return "\n".join(strip.text.rstrip() for strip in (*self._column.lines, *self._growing))

    # Laying out

    async def _write(self, reply: GrowingReply) -> None:
        while True:
            await reply.wake.wait()
            reply.wake.clear()
            ended = reply.ended.is_set()
            width, look, carry = self._width, self._current_look(), self._column.carry
            result = await asyncio.to_thread(reply.lay_out, reply.take(), ended, width, look, carry)
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
        if reply.message is not None:
            self._column.claim(reply.first, reply.message)
        self._updated()

    def _apply(self, result: Pass) -> None:
        if (result.width, result.look) == (self._width, self._look):
            for item, laid in zip(result.done, result.laid, strict=True):
                self._column.append(Entry(item), laid)
            self._growing = result.growing
        else:  # the window changed meanwhile; the growing block follows with the next pass
            for item in result.done:
                self._append(item)
            self._growing = []
        self._thinking = result.thinking and bool(self._growing)
        self._updated()

    def _append(self, item: Item, message: int | None = None) -> None:
        item = self._column.joined(item)
        look, carry = self._current_look(), self._column.carry
        self._column.append(Entry(item, message), lay_out(item, self._width, look, carry) if self._width else None)

    def _replace_item(self, index: int, item: Item) -> None:
        self._column.entries[index] = replace(self._column.entries[index], item=item)

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
        if self._width:
            _: Worker[None] = self.run_worker(self._lay_out_again, group="relay", exclusive=True)

    async def _lay_out_again(self) -> None:
        while True:  # until nothing has changed meanwhile but what was added below
            width, look, entries = self._width, self._current_look(), list(self._column.entries)
            known = {id(each.item): each for each in self._column.laid if (each.width, each.look) == (width, look)}
            items = [entry.item for entry in entries]
            laid = await asyncio.to_thread(lay_out_all, items, width, look, None, known)
            now = self._column.entries
            same = len(now) >= len(items) and all(a is b.item for a, b in zip(items, now, strict=False))
            if same and (width, look) == (self._width, self._current_look()):
                break
        self._column = Column(now[: len(items)], laid)
        for entry in now[len(items) :]:
            self._append(entry.item, entry.message)
        if self._reply is not None:
            self._reply.wake.set()
        self._updated()

    def _updated(self, follow: bool = False) -> None:
        self._find_chosen()
        self.virtual_size = Size(self._width, self.line_count)
        self._follow = self._follow or follow or self.scroll_y >= self.max_scroll_y
        self._keep_following()
        self.refresh()

    def _find_chosen(self) -> None:
        rows = range(0) if self._chosen is None else self._column.rows(self._chosen)
        first = next((row for row in rows if self._column.lines[row].text.strip()), rows.stop)
        self._chosen_rows = range(first, rows.stop)

    def _keep_following(self) -> None:
        if self._follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)

    def watch_virtual_size(self, size: Size) -> None:
        self.vertical_scrollbar.window_virtual_size = size.height

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follow = new_value >= self.max_scroll_y
        if new_value < old_value and new_value < self.size.height:
            self.post_message(self.NearTop())

    def on_click(self, event: events.Click) -> None:
        """Unfold or fold the thought whose line is clicked."""
        row = event.y + self.scroll_offset.y
        if self.text_selection is not None:
            return
        if self._reply is not None and self._thinking and row == len(self._column.lines):
            self._reply.unfold(not self._reply.unfolded)
            return
        index, within = self._column.at(row) or (0, 1)
        if within == 0 and isinstance(item := self._column.entries[index].item, Thought):
            self._replace_item(index, replace(item, unfolded=not item.unfolded))
            self._follow = False  # the line stays where it was clicked
            self._relay()

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
        if row in self._chosen_rows:
            strip = Strip.join([Strip([Segment("┃", base + self._current_look().primary)], 1), strip.crop(1)])
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            return _selected(strip, *span, self.screen.get_component_rich_style("screen--selection"))
        return strip

    def _line(self, row: int) -> Strip | None:
        lines = self._column.lines
        if row < len(lines):
            return lines[row]
        row -= len(lines)
        return self._growing[row] if row < len(self._growing) else None

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines = (strip.text.rstrip() for strip in (*self._column.lines, *self._growing))
        extracted = selection.extract("\n".join(lines)).split("\n")
        margin = " " * GUTTER
        if selection.start is None or selection.start.x == 0:
            extracted[0] = extracted[0].removeprefix(margin)
        return "\n".join([extracted[0], *(line.removeprefix(margin) for line in extracted[1:])]), "\n"


def _selected(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """`strip` with the characters from `start` to `end` (-1: to the end) in that style."""
    text = strip.text
    first = cell_len(text[:start])
    last = strip.cell_length if end == -1 else cell_len(text[:end])
    middle = Strip(Segment.apply_style(strip.crop(first, last), post_style=style), last - first)
    return Strip.join([strip.crop(0, first), middle, strip.crop(last)])
