"""The conversation as lines: finished blocks are laid out once, only the growing one again and again.

A reply is parsed and laid out on another thread, at most ten times a second and less often where one pass takes
long, so that neither keys nor the engine wait for it. So are messages that are opened, and all that a new width
changes, from their end up to some screens above what is in sight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.worker import Worker

from app.theme import Look, make_look
from app.widgets.column import Column, Entry, lay_out_end
from app.widgets.growing_reply import GrowingReply, Pass
from app.widgets.lines import GUTTER, restyled
from app.widgets.message_items import note_items
from app.widgets.render import Item, NoteKind, lay_out
from app.widgets.thought import Thought

_PERIOD_S = 0.2
_AHEAD = 400  # rows above what is in sight that are laid out with it
_KEPT = 1000  # rows of a reply that goes on, while its end is followed
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
        """The person has scrolled up to where there may be more: what `show_above` shows, or older messages."""

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
        notes = list(note_items(kind, text))
        if self._reply is not None:
            self._reply.after += notes
            return
        for note in notes:
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
        self._fill()

    async def put(self, messages: Sequence[tuple[int, Sequence[Item]]], above: bool = False) -> None:
        """Show messages, as their ids and items, below all others or above the first one."""
        entries = [Entry(item, message) for message, items in messages for item in items]
        items = [entry.item for entry in entries]
        while True:
            width, look = self._width, self._current_look()
            laid = await asyncio.to_thread(lay_out_end, items, width, look, len(items), _AHEAD) if width else []
            if (width, look) == (self._width, self._current_look()):
                break
        if above:
            self._updated(row=self.scroll_offset.y + self._column.insert_above(entries, laid))
        else:
            self._column.extend(entries, laid)
            self._updated()

    async def show_above(self) -> bool:
        """Lay out more of what is above; False if all of it is."""
        if self._column.first_laid == 0:
            return False
        await self._lay_out_again(self._column.first_laid)
        return True

    def shows(self, message: int) -> bool:
        """Whether at least the end of a message is shown."""
        return self._column.shows(message)

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
            # The window may have changed meanwhile, or the line that the first item goes on from.
            while (width, look) != (self._width, self._current_look()) or carry is not self._column.carry:
                width, look, carry = self._width, self._current_look(), self._column.carry
                result = await asyncio.to_thread(reply.lay_out_again, result, width, look, carry)
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
        for item, laid in zip(result.done, result.laid, strict=True):
            self._column.append(Entry(item), laid)
        self._growing = result.growing
        # Each line is some ten objects that Python's collector would go through again and again.
        if self._follow and self.text_selection is None and len(self._column.lines) > 2 * _KEPT:
            self._column.forget_above(_KEPT)
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
        self._fill()
        self._keep_following()

    def _fill(self) -> None:
        """Lay out more where there are fewer lines than fit, and more could be."""
        if self._column.first_laid > 0 and self.line_count < self.size.height:
            self._relay()

    def _relay(self) -> None:
        if self._width:
            _: Worker[None] = self.run_worker(self._lay_out_again, group="relay", exclusive=True)

    async def _lay_out_again(self, first: int | None = None) -> None:
        """Lay out all from the entry `first`, or else the first in sight, and what is some screens above it."""
        while True:  # until nothing has changed meanwhile but what was added below
            width, look, old = self._width, self._current_look(), self._column
            known = {id(each.item): each for each in old.laid if (each.width, each.look) == (width, look)}
            items = [entry.item for entry in old.entries]
            top = len(items) if self._follow else self._top()[0]
            begin = top if first is None else min(first, top)
            laid = await asyncio.to_thread(lay_out_end, items, width, look, begin, _AHEAD, known)
            old, count = self._column, len(items)
            same = len(old.entries) >= count and all(a is b.item for a, b in zip(items, old.entries, strict=False))
            in_sight = self._follow or self._top()[0] >= count - len(laid)
            if same and in_sight and old.first_laid <= count and (width, look) == (self._width, self._current_look()):
                break
        index, within = self._top()
        new = Column(old.entries[:count], laid)
        for entry, each in zip(old.entries[count:], old.laid[count - old.first_laid :], strict=True):
            fits = (each.width, each.look) == (width, look) and new.carry is None
            new.append(entry, each if fits else lay_out(entry.item, width, look, new.carry))
        self._column = new
        if self._reply is not None:
            self._reply.wake.set()
        self._updated(row=new.row(index) + within)

    def _top(self) -> tuple[int, int]:
        """The index of the entry at the top of what is in sight, and which of its rows is there."""
        return self._column.at(self.scroll_offset.y) or (len(self._column.entries), 0)

    def _updated(self, follow: bool = False, row: int | None = None) -> None:
        """Show what has changed. What is now in that row comes to the top, unless the end is followed."""
        self._find_chosen()
        self.virtual_size = Size(self._width, self.line_count)
        if row is not None and not self._follow:
            self.scroll_to(y=row, animate=False, immediate=True)
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
            return restyled(strip, *span, self.screen.get_component_rich_style("screen--selection"))
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
