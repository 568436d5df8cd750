"""Shows a log of any length. Only the lines on the screen are read; the view follows the end until
it is told to stay. Matches of a text are counted in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpu_panel import keys
from gpu_panel.common.painting import refresh_changed
from gpu_panel.common.textual_private import entitle
from gpu_panel.run.log import times
from gpu_panel.run.log.file import Lines, TextLines
from gpu_panel.run.log.matches import Matches, last_before

SHORT = 60
"""Entries of a log whose rows are counted."""
_KEPT = 1 << 14
"""A line with at most so many characters is drawn as a whole."""
MOST_ROWS = 200
"""Rows of one line, at most: more than a screen has."""

Piece = tuple[int, int]
"""(entry, character at which a row of it begins)."""


class LogView(ScrollView, can_focus=True):
    """Shows the lines that were passed to `show`: all of them, or only those with a match. What can
    be shown is counted as entries; without a filter an entry is a line."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--cursor", "log--hit", "log--here", "log--empty"}
    DEFAULT_CSS = """
    LogView {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        .log--cursor { background: $cursor-blurred; }
        .log--hit { background: $warning-muted; color: $text-warning; text-style: underline; }
        .log--here { color: $text-warning; text-style: bold reverse; }
        .log--empty { color: $text-muted; }
        &:focus .log--cursor { background: $cursor; text-style: $cursor-style; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(keys.of("log"))

    class Searched(Message):
        """A search has ended. `text`: a remark for the person, often empty."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: Lines | None = None
        self.following = True
        self.cursor = 0
        self.needle = ""
        self.wrapped = False
        self.filtered = False
        self._matches: Matches | None = None
        self._aim: int | None = None
        """The line that the cursor belongs on, until the matches up to it are counted."""
        self._sought: tuple[int, int] | None = None
        """(line, 1 or -1) from which on a match is looked for, until those there are counted."""
        self._wanted: times.Stamp | None = None
        """The time that is looked for."""
        self._counting = threading.Event()
        self._counts = False
        self._page: tuple[object, list[Piece]] = (None, [])
        self._generation = self._gone = 0
        self._longest = 0
        self._busy = False
        self._drawn: dict[int, Strip] = {}

    # --- what is shown --------------------------------------------------------------------------

    def show(self, lines: Lines | None) -> None:
        if self.lines is lines:
            return
        if self.lines is not None:
            self.lines.close()
        self.lines = lines
        self._longest = 0
        self._aim = self._sought = self._wanted = None
        if lines is not None:
            self._generation, self._gone = lines.generation, lines.gone
        self.following = True
        self._count_again()
        self.cursor = max(self.count - 1, 0)
        self.scroll_to(x=0, animate=False)
        self.read_on()

    @property
    def count(self) -> int:
        if self.filtered and self._matches is not None:
            return len(self._matches)
        return len(self.lines or ())

    @property
    def rows_wanted(self) -> int:
        width = max(self.scrollable_content_region.width, 1)
        if not self.wrapped or self.count > SHORT:
            return max(self.count, 1)
        return max(sum(len(self._begins(entry, width)) for entry in range(self.count)), 1)

    def line_of(self, entry: int) -> int:
        if self.filtered and self._matches is not None:
            numbers = self._matches.numbers
            return numbers[entry] if 0 <= entry < len(numbers) else -1
        return entry

    @property
    def line(self) -> int:
        """The number of the line that the cursor is on, or will be; -1 if nothing is shown."""
        return self.line_of(self.cursor) if self._aim is None else self._aim

    def entry_of(self, line: int) -> int:
        """The entry of a line; if it has none, of the next line that has one."""
        if self.filtered and self._matches is not None:
            return self._matches.nearest(line)
        return line

    def read_on(self) -> None:
        if self.lines is None or isinstance(self.lines, TextLines):
            self._grown()
        elif not self._busy:
            self._to_end()
            self._busy = True
            self._read(self.lines)

    @work(thread=True, group="log-read", exit_on_error=False)
    def _read(self, lines: Lines) -> None:
        changed = False
        try:
            changed = lines.update()
            end = time.monotonic() + 0.25
            while lines.share < 1.0 and time.monotonic() < end and lines.update():
                pass
        finally:
            self._busy = False
            self.call_later(self._have_read, lines, changed)

    def _have_read(self, lines: Lines, changed: bool) -> None:
        if lines is not self.lines:  # another log was chosen meanwhile
            self.read_on()
        elif changed or lines.missing or not len(lines):
            self._grown()
            if lines.share < 1.0:
                self.read_on()

    def _grown(self) -> None:
        if not self.is_mounted or self.lines is None:
            return
        if self.lines.generation != self._generation:
            self._generation = self.lines.generation
            self._stay(self.lines)
        self._count_on()
        self._settle()

    def _settle(self) -> None:
        self._retitle()
        self._measure()
        if self.following:
            self.cursor = max(self.count - 1, 0)
            self.call_after_refresh(self._to_end)
        refresh_changed(self, self._drawn, self._strip)

    def _stay(self, lines: Lines) -> None:
        """Keep showing the same lines after some were dropped at the front."""
        by, self._gone = lines.gone - self._gone, lines.gone
        line = self.line
        if self._sought is not None:
            self._sought = max(self._sought[0] - by, 0), self._sought[1]
        self._count_again()  # its line numbers mean other lines now
        if self.filtered:
            if not self.following:
                self.to_line(max(line - by, 0))
            return
        self.cursor = min(max(self.cursor - by, 0), max(len(lines) - 1, 0))
        if by and not self.following:
            top = max(round(self.scroll_y) - by, 0)
            self._measure()
            self.scroll_to(y=top, animate=False, force=True, immediate=True)

    def _to_end(self) -> None:
        """Move the scrollbar to the end; which lines are drawn follows from `top`."""
        if not self.following:
            return
        if self.scroll_y != self.max_scroll_y:
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)
        elif self.show_vertical_scrollbar:  # it may have missed changes from before it was shown
            self.vertical_scrollbar.position = self.scroll_y

    def on_resize(self) -> None:
        self._measure()
        self.call_after_refresh(self._to_end)

    @property
    def top(self) -> int:
        """The first entry on the screen. While following the end it is computed from the length of
        the log, as a resize moves the scrollbar only after the next layout."""
        if self.following:
            if self.wrapped:
                page = self._rows()
                return page[0][0] if page else 0
            return max(self.count - self.scrollable_content_region.height, 0)
        return round(self.scroll_y)

    def _row(self, y: int) -> Piece | None:
        if self.wrapped:
            rows = self._rows()
            return rows[y] if 0 <= y < len(rows) else None
        entry = self.top + y
        return (entry, 0) if 0 <= entry < self.count else None

    def _rows(self) -> list[Piece]:
        """What is on each row of the screen, with long lines on several."""
        room, count = self.scrollable_content_region, self.count
        top = None if self.following else round(self.scroll_y)
        # The last line may still grow.
        state = (top, room.size, count, self._generation, self.line_of(count - 1),
                 len(self._text(count - 1)) if count else 0)
        if self._page[0] != state:
            self._page = state, (
                page_to(count, room.height, self._begins) if top is None
                else page_from(top, count, room.height, self._begins))
        return self._page[1]

    def _begins(self, entry: int, width: int | None = None) -> list[int]:
        return pieces(self._text(entry), width or self.scrollable_content_region.width)

    def _measure(self) -> None:
        high, room = max(self.count, 1), self.scrollable_content_region
        if self.wrapped:  # the last page may hold fewer entries than rows
            last = page_to(self.count, room.height, self._begins)
            whole = len({entry for entry, at in last if at == 0})
            high += max(room.height - max(whole, 1), 0) if len(last) >= room.height else 0
        size = Size(1 if self.wrapped else max(self._longest, 1), high)
        if self.show_vertical_scrollbar != (size.height > room.height) \
                or self.show_horizontal_scrollbar != (size.width > room.width):
            self.virtual_size = size
            return
        # Setting it would lay out the whole screen, for each line that a run prints.
        self.set_reactive(Widget.virtual_size, size)  # pyright: ignore[reportArgumentType]
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height
        if self.show_horizontal_scrollbar:
            self.horizontal_scrollbar.window_virtual_size = size.width

    def _retitle(self) -> None:
        parts = []
        if self.lines is not None and self.lines.share < 1.0:
            parts.append(f"reading {self.lines.share:.0%}")
        line = self.line_of(self.cursor)
        if self.needle and (matches := self._matches) is not None:
            place = None if self.following and not self.filtered else matches.place(line)
            many = f"{len(matches):,}" + ("" if matches.complete else "+")
            parts.append(f"{many} matches" if place is None else f"{place + 1:,} of {many}")
        parts += ["only matches"] if self.filtered else []
        parts += ["wrap"] if self.wrapped else []
        parts.append("following" if self.following else f"line {max(line, 0) + 1:,}")
        parts.append(f"{len(self.lines or ()):,} lines")
        entitle(self, subtitle=" · ".join(parts))

    # --- moving ---------------------------------------------------------------------------------

    def move_to(self, entry: int) -> None:
        self._aim = self._sought = self._wanted = None
        total = self.count
        self.cursor = min(max(entry, 0), max(total - 1, 0))
        top, room = self.top, max(self.scrollable_content_region.height, 1)
        if self.following:
            self.following = False
            self.scroll_to(y=top, animate=False, force=True, immediate=True)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.wrapped:
            shown = {e for e, _ in self._rows()}
            while self.cursor not in shown and top < self.cursor:
                top += 1
                self.scroll_to(y=top, animate=False, force=True, immediate=True)
                shown = {e for e, _ in self._rows()}
                if self.cursor - top > 2 * room:
                    top = self.cursor - room
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, force=True, immediate=True)
        self._retitle()
        self.refresh()

    def to_line(self, line: int) -> None:
        """Put the cursor on a line, or on the next one that is shown. If matches are still being
        counted, it gets there when that line's turn has come, unless it is moved before."""
        self.move_to(self.entry_of(line))
        if self.filtered and self._matches is not None and not self._matches.knows(line):
            self._aim = line

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(self.scrollable_content_region.height - 1, 1))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.following = True
        self._grown()

    def action_follow(self) -> None:
        self.following = not self.following
        self._grown()

    def action_wrap(self) -> None:
        self.wrapped = not self.wrapped
        self.scroll_to(x=0, animate=False)
        self._settle()
        if not self.following:
            self.move_to(self.cursor)

    def action_aside(self, by: int) -> None:
        self.scroll_to(x=self.scroll_x + by, animate=False, force=True)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.following = False
        self._retitle()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        row = self._row(offset.y) if offset is not None else None
        if row is not None:
            self.move_to(row[0])

    def current(self) -> str:
        return self._text(self.cursor)

    # --- finding --------------------------------------------------------------------------------

    def search(self, needle: str, step: int = -1) -> None:
        """Mark all matches of `needle` and go to the next (step 1) or the previous one (-1)."""
        line = self.line
        self.needle = needle
        self._sought = self._wanted = None
        self._count_again()
        if self.filtered and not self.following:
            self.to_line(max(line, 0))
        self.refresh()
        if not needle:
            self.only_matches(filtered=False)
        if needle and not self.filtered:
            self._seek(self.cursor, step)
        else:
            self.post_message(self.Searched(""))

    def find_next(self, step: int) -> None:
        if not self.needle:
            return
        if self.filtered:  # every entry is a match
            self.move_to((self.cursor + step) % max(self.count, 1))
        else:
            self._seek(self.cursor + step, step)

    def _seek(self, line: int, step: int) -> None:
        """Go to the next match from a line on; later, if it is not counted yet. Backwards, where
        the count may have far to go, the lines before it are looked at, too."""
        again, self._sought = self._sought == (line, step), (line, step)
        self._wanted = None
        if (matches := self._matches) is None:
            return
        found = matches.beside(line, step)
        if found is not None:
            self.post_message(self.Searched("Search wrapped around" if found[1] else ""))
            self._show_found(found[0])
        elif matches.complete or matches.full:
            self._sought = None
            self.post_message(self.Searched(f"Not found: {self.needle}"))
        elif step < 0 and not again and self.lines is not None:
            self._look_back(self.lines, matches, line, self._counting)

    @work(thread=True, group="log-search", exit_on_error=False)
    def _look_back(self, lines: Lines, matches: Matches, line: int, stop: threading.Event) -> None:
        found = last_before(lines, matches.needle, line, stop)
        if found is not None:
            self.call_later(self._found_back, matches, line, found)

    def _found_back(self, matches: Matches, line: int, found: int) -> None:
        if self.is_mounted and matches is self._matches and self._sought == (line, -1):
            self.post_message(self.Searched(""))
            self._show_found(found)

    def _show_found(self, line: int) -> None:
        self.to_line(line)
        if not self.wrapped:
            self._aside_to_needle()

    def _count_again(self) -> None:
        self._counting.set()
        self._counting = threading.Event()
        self._matches = Matches(self.needle) if self.needle else None
        self._count_on()

    def _count_on(self) -> None:
        matches, lines = self._matches, self.lines
        if matches is not None and lines is not None and not self._counts:
            self._counts = True
            self._match(matches, lines, self._counting)

    @work(thread=True, group="log-count", exit_on_error=False)
    def _match(self, matches: Matches, lines: Lines, stop: threading.Event) -> None:
        told = time.monotonic()
        try:
            while not stop.is_set() and matches.extend(lines, stop):
                if time.monotonic() - told > 0.2:
                    told = time.monotonic()
                    self.call_later(self._counted, matches)
        finally:
            self._counts = False
            self.call_later(self._counted, matches)

    def _counted(self, matches: Matches) -> None:
        if not self.is_mounted:
            return
        if matches is not self._matches:  # another text was typed meanwhile
            self._count_on()
            return
        if self._sought is not None:
            self._seek(*self._sought)
        if self.filtered:
            if self._aim is not None:
                self.to_line(self._aim)
            self._settle()
        else:
            self._retitle()

    def _aside_to_needle(self) -> None:
        """Scroll sideways until the match in the line under the cursor is visible."""
        text, needle = self._text(self.cursor), self.needle
        at = (text.lower() if needle == needle.lower() else text).find(needle)
        if at < 0:
            return
        column, wide = cell_len(text[:at]), self.scrollable_content_region.width
        self._longest = max(self._longest, cell_len(text))
        self._measure()
        left = round(self.scroll_x)
        if not left <= column <= left + wide - cell_len(needle):
            self.scroll_to(x=max(column - wide // 2, 0) if column >= wide else 0, animate=False,
                           force=True)

    def only_matches(self, filtered: bool) -> None:
        """Show only the lines with a match, or all. The cursor stays, or goes to the next match."""
        if filtered == self.filtered:
            return
        line = self.line
        self.filtered = filtered
        self.scroll_to(x=0, animate=False)
        self._settle()
        if not self.following:
            self.to_line(max(line, 0))

    def go_to(self, where: str) -> None:
        """Go to a line number or to a time that a person has typed."""
        number = where.strip().replace(",", "")
        if self.lines is None:
            return
        if number.isascii() and number.isdecimal():
            total = len(self.lines)
            if not 1 <= int(number) <= total:
                self.post_message(self.Searched(
                    f"There is no line {int(number):,}: this log has {total:,}"))
                return
            self.to_line(int(number) - 1)
        elif (wanted := times.typed(where)) is not None:
            self._sought, self._wanted = None, wanted
            self._find_time(self.lines, wanted)
        elif number:
            self.post_message(self.Searched(
                f"Neither a line nor a time: {where}. Type 1234, 14:05 or 2026-11-22 14:05:10"))

    @work(thread=True, group="log-search", exit_on_error=False)
    def _find_time(self, lines: Lines, wanted: times.Stamp) -> None:
        gone, found = lines.gone, times.find(lines, wanted)
        self.call_later(self._found_time, wanted, found, gone)

    def _found_time(self, wanted: times.Stamp, found: int | str, gone: int) -> None:
        """`gone`: lines that had been dropped at the front when `found` was counted."""
        if wanted is not self._wanted or self.lines is None:  # the person has gone elsewhere
            return
        if isinstance(found, str):
            self.post_message(self.Searched(f"Not found: {found}"))
        else:
            self._show_found(max(found - (self.lines.gone - gone), 0))

    # --- drawing --------------------------------------------------------------------------------

    def _text(self, entry: int) -> str:
        return self.lines.line(self.line_of(entry)) if self.lines is not None else ""

    def render_line(self, y: int) -> Strip:
        self._drawn[y] = strip = self._strip(y)
        return strip

    def _strip(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        ground = self.rich_style
        if self.lines is None or not self.count:
            text = self._nothing() if y == 0 else ""
            style = ground + self.get_component_rich_style("log--empty", partial=True)
            return Strip([Segment(text, style)]).adjust_cell_length(width, ground)
        row = self._row(y)
        if row is None:
            return Strip.blank(width, ground)
        entry, begin = row
        here = entry == self.cursor and (self.has_focus or not self.following)
        if here:
            ground += self.get_component_rich_style("log--cursor", partial=True)
        text = self._text(entry)
        if self.wrapped:
            strip = Strip(list(self._segments(text, ground, here)))
            left = cell_len(text[:begin])
            part = pieces(text, width)
            after = part.index(begin) + 1 if begin in part else len(part)
            right = cell_len(text[:part[after]]) if after < len(part) else left + width
            return strip.crop(left, right).adjust_cell_length(width, ground)
        length = cell_len(text)
        if length > self._longest:
            self._longest = length
            self.call_later(self._measure)
        left = round(self.scroll_x)
        if length == len(text) > _KEPT:  # draw only the visible part of a very long line
            start = max(left - len(self.needle), 0)
            text, left = text[start:left + width + len(self.needle)], left - start
        strip = Strip(list(self._segments(text, ground, here)))
        return strip.crop(left, left + width).adjust_cell_length(width, ground)

    def _segments(self, text: str, ground: Style, here: bool) -> list[Segment]:
        needle = self.needle
        if not needle:
            return [Segment(text, ground)]
        mark = ground + self.get_component_rich_style("log--here" if here else "log--hit",
                                                      partial=True)
        hay = text.lower() if needle == needle.lower() else text
        if len(hay) != len(text):  # a few capitals become two letters in lower case
            return [Segment(text, ground)]
        out, begin = [], 0
        while (at := hay.find(needle, begin)) >= 0:
            out += [Segment(text[begin:at], ground), Segment(text[at:at + len(needle)], mark)]
            begin = at + len(needle)
        return [*out, Segment(text[begin:], ground)]

    def _nothing(self) -> str:
        if self.filtered:
            searching = self._matches is not None and not self._matches.complete
            return "searching…" if searching else f"no line with {self.needle}"
        if self.lines is not None and self.lines.missing:
            return self.lines.trouble or "no output yet"
        return "empty so far"

    def on_unmount(self) -> None:
        self._counting.set()
        if self.lines is not None:
            self.lines.close()


def pieces(text: str, width: int) -> list[int]:
    """The character at which each row of a line begins, in rows of at most `width` cells."""
    width = max(width, 1)
    if text.isascii():
        return list(range(0, max(len(text), 1), width))[:MOST_ROWS]
    if cell_len(text) <= width:
        return [0]
    begins, at = [], 0
    for part in chop_cells(text[:width * MOST_ROWS], width)[:MOST_ROWS]:
        begins.append(at)
        at += len(part)
    return begins or [0]


def page_from(top: int, count: int, height: int, begins: Callable[[int], list[int]],
              ) -> list[Piece]:
    """The rows of a page whose first entry is `top`. `count`: how many entries there are;
    `begins`: where the rows of an entry begin."""
    rows: list[Piece] = []
    entry = top
    while entry < count and len(rows) < height:
        rows += [(entry, at) for at in begins(entry)]
        entry += 1
    return rows[:height]


def page_to(count: int, height: int, begins: Callable[[int], list[int]]) -> list[Piece]:
    """The rows of the last page; of its first entry perhaps only the last rows."""
    rows: list[Piece] = []
    entry = count - 1
    while entry >= 0 and len(rows) < height:
        rows = [(entry, at) for at in begins(entry)] + rows
        entry -= 1
    return rows[-height:] if height else []
