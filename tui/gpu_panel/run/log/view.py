"""Shows a log of any length. Only the lines on the screen are read; the view follows the end until
it is told to stay; searches run in a thread."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpu_panel import keys
from gpu_panel.run.log.file import Lines, LogFile
from gpu_panel.run.log.joined import JoinedLog

FILES = (LogFile, JoinedLog)
_KEPT = 1 << 14
"""A line with at most so many characters is cached and drawn as a whole."""


class LogView(ScrollView, can_focus=True):
    """Shows the lines that were passed to `show`."""

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
        self._cache: LRUCache[object, str] = LRUCache(512)
        self._generation = self._gone = 0
        self._longest = 0
        self._stop = threading.Event()
        self._busy = False
        self._subtitle = ""

    # --- what is shown --------------------------------------------------------------------------

    def show(self, lines: Lines | None) -> None:
        """Show another source, from its end."""
        if self.lines is lines:
            return
        if isinstance(self.lines, FILES):
            self.lines.close()
        self.lines = lines
        self._stop.set()
        self._cache.clear()
        self._longest = 0
        self._generation = lines.generation if isinstance(lines, FILES) else 0
        self._gone = _gone(lines)
        self.following, self.cursor = True, max(len(lines or ()) - 1, 0)
        self.scroll_to(x=0, animate=False)
        self.read_on()

    def read_on(self) -> None:
        """Read what is new in the file, in a thread."""
        if not isinstance(self.lines, FILES):
            self._grown()
        elif not self._busy:
            self._to_end()
            self._busy = True
            self._read(self.lines)

    @work(thread=True, group="log-read", exit_on_error=False)
    def _read(self, lines: LogFile | JoinedLog) -> None:
        changed = False
        try:
            changed = lines.update()
            end = time.monotonic() + 0.25
            while lines.share < 1.0 and time.monotonic() < end and lines.update():
                pass
        finally:
            self._busy = False
            self.call_later(self._have_read, lines, changed)

    def _have_read(self, lines: LogFile | JoinedLog, changed: bool) -> None:
        if lines is not self.lines:  # another log was chosen meanwhile
            self.read_on()
        elif changed or lines.missing or not len(lines):
            self._grown()
            if lines.share < 1.0:
                self.read_on()

    def _grown(self) -> None:
        if not self.is_mounted or self.lines is None:
            return
        lines = self.lines
        if isinstance(lines, FILES) and lines.generation != self._generation:
            self._generation = lines.generation
            self._cache.clear()
            self._stay(lines)
        self._retitle()
        self._measure()
        if self.following:
            self.cursor = max(len(lines) - 1, 0)
            self.call_after_refresh(self._to_end)
        self.refresh()

    def _stay(self, lines: LogFile | JoinedLog) -> None:
        """Keep showing the same lines after some were dropped at the front."""
        by, self._gone = _gone(lines) - self._gone, _gone(lines)
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
        self.call_after_refresh(self._to_end)

    @property
    def top(self) -> int:
        """The first line on the screen. While following the end it is computed from the length of
        the log, as a resize moves the scrollbar only after the next layout."""
        if self.following:
            return max(len(self.lines or ()) - self.scrollable_content_region.height, 0)
        return round(self.scroll_y)

    def _measure(self) -> None:
        size = Size(max(self._longest, 1), max(len(self.lines or ()), 1))
        if size != self.virtual_size:
            self.virtual_size = size

    def _retitle(self) -> None:
        parts = []
        if isinstance(self.lines, FILES) and self.lines.share < 1.0:
            parts.append(f"reading {self.lines.share:.0%}")
        parts.append("following" if self.following else f"line {self.cursor + 1:,}")
        parts.append(f"{len(self.lines or ()):,} lines")
        if (subtitle := " · ".join(parts)) != self._subtitle:  # setting it repaints everything
            self._subtitle = subtitle
            self.border_subtitle = subtitle

    # --- moving ---------------------------------------------------------------------------------

    def move_to(self, line: int) -> None:
        """Put the cursor on a line and bring it into view."""
        total = len(self.lines or ())
        self.cursor = min(max(line, 0), max(total - 1, 0))
        top, room = self.top, max(self.scrollable_content_region.height, 1)
        if self.following:
            self.following = False
            self.scroll_to(y=top, animate=False, force=True)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, force=True)
        self._retitle()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor by so many lines."""
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by so many pages."""
        self.move_to(self.cursor + by * max(self.scrollable_content_region.height - 1, 1))

    def action_first(self) -> None:
        """Go to the first line."""
        self.move_to(0)

    def action_last(self) -> None:
        """Go to the last line and follow what is added."""
        self.following = True
        self._grown()

    def action_follow(self) -> None:
        """Switch between following the end and staying here."""
        self.following = not self.following
        self._grown()

    def action_aside(self, by: int) -> None:
        """Scroll sideways by `by` cells."""
        self.scroll_to(x=self.scroll_x + by, animate=False, force=True)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.following = False
        self._retitle()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            self.move_to(self.top + offset.y)

    def current(self) -> str:
        """The line under the cursor, as it is shown."""
        return self._text(self.cursor)

    # --- search ---------------------------------------------------------------------------------

    def search(self, needle: str, step: int = -1) -> None:
        """Mark all matches of `needle` and go to the next (step 1) or the previous one (-1)."""
        self.needle = needle
        self.refresh()
        self._stop.set()
        if needle and self.lines is not None:
            self._stop = threading.Event()
            self._search(self.lines, needle, self.cursor, step, self._stop)
        else:
            self.post_message(self.Searched(""))

    def find_next(self, step: int) -> None:
        """Go to the next match (1) or the previous one (-1)."""
        if not self.needle or self.lines is None:
            return
        self._stop.set()
        self._stop = threading.Event()
        self._search(self.lines, self.needle, self.cursor + step, step, self._stop)

    @work(thread=True, group="log-search", exit_on_error=False)
    def _search(self, lines: Lines, needle: str, start: int, step: int,
                stop: threading.Event) -> None:
        gone = _gone(lines)
        found = lines.find(needle, start, step, stop)
        around = False
        if found is None and not stop.is_set():  # go on from the other end
            found = lines.find(needle, 0 if step > 0 else len(lines) - 1, step, stop)
            around = found is not None
        if not stop.is_set():
            self.call_later(self._found, lines, found, around, gone)

    def _found(self, lines: Lines, found: int | None, around: bool, gone: int) -> None:
        if lines is not self.lines or not self.is_mounted:
            return
        if found is None:
            self.post_message(self.Searched(f"Not found: {self.needle}"))
            return
        self.post_message(self.Searched("Continued from the other end" if around else ""))
        self.move_to(found - (_gone(lines) - gone))
        self._aside_to_needle()

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

    # --- drawing --------------------------------------------------------------------------------

    def _text(self, number: int) -> str:
        lines = self.lines
        if lines is None:
            return ""
        # The last line may still be growing.
        if number >= len(lines) - 1:
            return lines.line(number)
        text = self._cache.get(number)
        if text is None:
            text = lines.line(number)
            if len(text) <= _KEPT:
                self._cache[number] = text
        return text

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        ground = self.rich_style
        lines = self.lines
        if lines is None or not len(lines):
            text = self._nothing() if y == 0 else ""
            style = ground + self.get_component_rich_style("log--empty", partial=True)
            return Strip([Segment(text, style)]).adjust_cell_length(width, ground)
        number = self.top + y
        if number >= len(lines):
            return Strip.blank(width, ground)
        here = number == self.cursor and (self.has_focus or not self.following)
        if here:
            ground += self.get_component_rich_style("log--cursor", partial=True)
        text = self._text(number)
        length = cell_len(text)
        if length > self._longest:
            self._longest = length
            self.call_later(self._measure)
        left = round(self.scroll_x)
        if length == len(text) > _KEPT:  # draw only the visible part of a very long line
            begin = max(left - len(self.needle), 0)
            text, left = text[begin:left + width + len(self.needle)], left - begin
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
        if isinstance(self.lines, FILES) and self.lines.missing:
            trouble = self.lines.trouble
            return f"{self.lines.path.name} can't be read: {trouble}" if trouble \
                else "no output yet"
        return "empty so far"

    def on_unmount(self) -> None:
        self._stop.set()
        if isinstance(self.lines, FILES):
            self.lines.close()


def _gone(lines: Lines | None) -> int:
    """The lines that have been dropped at the front of a log."""
    return lines.gone if isinstance(lines, JoinedLog) else 0
