"""Shows the last lines of a log. The view follows the end until it is told to stay."""

from __future__ import annotations

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
from gpu_panel.run.log.lines import MOST, Log

SHORT = 60
"""Entries of a log whose rows are counted."""
_KEPT = 1 << 14
"""A line with at most so many characters is drawn as a whole."""
MOST_ROWS = 200
"""Rows of one line, at most: more than a screen has."""

Piece = tuple[int, int]
"""(entry, character at which a row of it begins)."""


class LogView(ScrollView, can_focus=True):
    """Shows the log that was passed to `show`: all its lines, or only those with a match. What can
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
        self.log_shown: Log | None = None
        self.following = True
        self.cursor = 0
        self.needle = ""
        self.wrapped = False
        self.filtered = False
        self._hits: list[int] = []
        """The lines with the text that is searched for."""
        self._longest = 0
        self._reads = False
        self._drawn: dict[int, Strip] = {}

    # --- what is shown --------------------------------------------------------------------------

    def show(self, log: Log | None) -> None:
        if self.log_shown is log:
            return
        self.log_shown = log
        self._longest = 0
        self.following = True
        self.scroll_to(x=0, animate=False)
        self._settle()
        self.read_on()

    @property
    def lines(self) -> list[str]:
        return self.log_shown.lines if self.log_shown is not None else []

    @property
    def count(self) -> int:
        return len(self._hits) if self.filtered else len(self.lines)

    @property
    def rows_wanted(self) -> int:
        width = max(self.scrollable_content_region.width, 1)
        if not self.wrapped or self.count > SHORT:
            return max(self.count, 1)
        return max(sum(len(pieces(self._text(entry), width)) for entry in range(self.count)), 1)

    def read_on(self) -> None:
        if self.log_shown is not None and self.log_shown.path is not None and not self._reads:
            self._reads = True
            self._read(self.log_shown)

    @work(thread=True, group="log-read", exit_on_error=False)
    def _read(self, log: Log) -> None:
        new = None
        try:
            new = log.read()
        finally:
            self.call_later(self._have_read, log, new)

    def _have_read(self, log: Log, new: tuple[list[str], str | None, str, bool] | None) -> None:
        """Take in what `Log.read` has returned."""
        self._reads = False
        gone = log.gone
        changed = new is not None and log.take(*new)
        if log is not self.log_shown:  # another log was chosen meanwhile
            self.read_on()
        elif changed and self.is_mounted:
            if by := log.gone - gone:
                self._stay(by)
            self._settle()

    def _stay(self, by: int) -> None:
        """Keep showing the same lines after `by` were dropped at the front."""
        if self.filtered:
            by = sum(hit < by for hit in self._hits)
        self.cursor = max(self.cursor - by, 0)
        if not self.following:
            self.scroll_to(y=max(round(self.scroll_y) - by, 0), animate=False, force=True,
                           immediate=True)

    def _settle(self) -> None:
        """Show what there is now."""
        self._hits = [n for n, line in enumerate(self.lines) if self._holds(line)] \
            if self.needle else []
        self.cursor = min(self.cursor, max(self.count - 1, 0))
        if self.following:
            self.cursor = max(self.count - 1, 0)
        self._retitle()
        self._measure()
        if self.following:
            self.call_after_refresh(self._to_end)
        refresh_changed(self, self._drawn, self._strip)

    def _holds(self, line: str) -> bool:
        """Whether the text that is searched for is in it; case counts if that has capitals."""
        return self.needle in (line.lower() if self.needle == self.needle.lower() else line)

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
        """What is on each row of the screen, with long lines on several; while following the end,
        of the first one perhaps only its last rows."""
        room, count, rows = self.scrollable_content_region, self.count, list[Piece]()
        entry = count - 1 if self.following else round(self.scroll_y)
        while 0 <= entry < count and len(rows) < room.height:
            of_entry = [(entry, at) for at in pieces(self._text(entry), room.width)]
            rows = of_entry + rows if self.following else rows + of_entry
            entry += -1 if self.following else 1
        return rows[-room.height:] if self.following else rows[:room.height]

    def _measure(self) -> None:
        high, room = max(self.count, 1), self.scrollable_content_region
        if self.wrapped:  # the last page may hold fewer entries than rows
            entry, used = self.count, 0
            while entry > 0 and used < room.height:
                entry -= 1
                used += len(pieces(self._text(entry), room.width))
            if used >= room.height:
                high += max(room.height - max(self.count - entry - (used > room.height), 1), 0)
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
        line = self._line_of(self.cursor)
        if self.needle:
            many = f"{len(self._hits):,}"
            here = line in self._hits and (self.filtered or not self.following)
            parts.append(f"{self._hits.index(line) + 1:,} of {many}" if here
                         else f"{many} matches")
        parts += ["only matches"] if self.filtered else []
        parts += ["wrap"] if self.wrapped else []
        parts += ["following"] if self.following else []
        cut = self.log_shown is not None and self.log_shown.cut
        parts.append(f"last {MOST:,} lines (v: all)" if cut else f"{len(self.lines):,} lines")
        entitle(self, subtitle=" · ".join(parts))

    # --- moving ---------------------------------------------------------------------------------

    def move_to(self, entry: int) -> None:
        self.cursor = min(max(entry, 0), max(self.count - 1, 0))
        top, room = self.top, max(self.scrollable_content_region.height, 1)
        if self.following:
            self.following = False
            self.scroll_to(y=top, animate=False, force=True, immediate=True)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.wrapped:
            top = max(top, self.cursor - room)
            self.scroll_to(y=top, animate=False, force=True, immediate=True)
            while top < self.cursor and self.cursor not in {entry for entry, _ in self._rows()}:
                top += 1
                self.scroll_to(y=top, animate=False, force=True, immediate=True)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, force=True, immediate=True)
        self._retitle()
        self.refresh()

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(self.scrollable_content_region.height - 1, 1))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.following = True
        self._settle()

    def action_follow(self) -> None:
        self.following = not self.following
        self._settle()

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

    # --- finding --------------------------------------------------------------------------------

    def search(self, needle: str, step: int = -1) -> None:
        """Mark all matches of `needle` and go to the next (step 1) or the previous one (-1)."""
        line = self._line_of(self.cursor)
        self.needle = needle
        if not needle:
            self.only_matches(filtered=False)
        self._settle()
        if self.filtered and not self.following:
            self._to_line(line)
        elif needle and not self.filtered:
            self._seek(self.cursor, step)
        self.refresh()

    def find_next(self, step: int) -> None:
        if self.filtered:  # every entry is a match
            self.move_to((self.cursor + step) % max(self.count, 1))
        elif self.needle:
            self._seek(self.cursor + step, step)

    def _seek(self, line: int, step: int) -> None:
        """Go to the next match from a line on, round the end if there is none."""
        if not self._hits:
            self.post_message(self.Searched(f"Not found: {self.needle}"))
            return
        ahead = [hit for hit in self._hits if (hit - line) * step >= 0]
        around = ahead or self._hits
        self.post_message(self.Searched("" if ahead else "Search wrapped around"))
        self.move_to(around[0] if step > 0 else around[-1])
        text = self._text(self.cursor)
        if self.wrapped or not self._holds(text):
            return
        # Scroll sideways until the match is visible.
        at = (text.lower() if self.needle == self.needle.lower() else text).find(self.needle)
        column, wide = cell_len(text[:at]), self.scrollable_content_region.width
        self._longest = max(self._longest, cell_len(text))
        self._measure()
        left = round(self.scroll_x)
        if not left <= column <= left + wide - cell_len(self.needle):
            self.scroll_to(x=max(column - wide // 2, 0) if column >= wide else 0, animate=False,
                           force=True)

    def only_matches(self, filtered: bool) -> None:
        """Show only the lines with a match, or all. The cursor stays, or goes to the next match."""
        if filtered == self.filtered:
            return
        line = self._line_of(self.cursor)
        self.filtered = filtered
        self.scroll_to(x=0, animate=False)
        self._settle()
        if not self.following:
            self._to_line(line)

    def _to_line(self, line: int) -> None:
        self.move_to(sum(hit < line for hit in self._hits) if self.filtered else line)

    # --- drawing --------------------------------------------------------------------------------

    def _line_of(self, entry: int) -> int:
        """The number of an entry's line; -1 if there is no such entry."""
        return -1 if not 0 <= entry < self.count else self._hits[entry] if self.filtered else entry

    def _text(self, entry: int) -> str:
        line = self._line_of(entry)
        return self.lines[line] if line >= 0 else ""

    def current(self) -> str:
        return self._text(self.cursor)

    def render_line(self, y: int) -> Strip:
        self._drawn[y] = strip = self._strip(y)
        return strip

    def _strip(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        ground = self.rich_style
        if not self.count:
            text = "" if y or self.log_shown is None else f"no line with {self.needle}" \
                if self.filtered else self.log_shown.trouble or "empty so far"
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
        hay = text.lower() if needle == needle.lower() else text
        if not needle or len(hay) != len(text):  # a few capitals become two letters in lower case
            return [Segment(text, ground)]
        mark = ground + self.get_component_rich_style("log--here" if here else "log--hit",
                                                      partial=True)
        out, begin = [], 0
        while (at := hay.find(needle, begin)) >= 0:
            out += [Segment(text[begin:at], ground), Segment(text[at:at + len(needle)], mark)]
            begin = at + len(needle)
        return [*out, Segment(text[begin:], ground)]


def pieces(text: str, width: int) -> list[int]:
    """The character at which each row of a line begins, in rows of at most `width` cells."""
    width = max(width, 1)
    if text.isascii():
        return list(range(0, max(len(text), 1), width))[:MOST_ROWS]
    begins, at = [], 0
    for part in chop_cells(text[:width * MOST_ROWS], width)[:MOST_ROWS]:
        begins.append(at)
        at += len(part)
    return begins or [0]
