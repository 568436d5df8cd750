"""Finding text in a log: the next match, how many there are, only those lines; a line or a time.
Searches run in threads."""

from __future__ import annotations

import threading
import time

from rich.cells import cell_len
from textual import work
from textual.message import Message

from gpu_panel.run.log import times
from gpu_panel.run.log.file import Lines
from gpu_panel.run.log.matches import Matches
from gpu_panel.run.log.scroll import LogScroll, gone


class LogView(LogScroll):
    """A log in which text, lines and times can be found."""

    class Searched(Message):
        """A search has ended. `text`: a remark for the person, often empty."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def search(self, needle: str, step: int = -1) -> None:
        """Mark all matches of `needle` and go to the next (step 1) or the previous one (-1)."""
        line = self.line
        self.needle = needle
        self._count_again()
        if self.filtered and not self.following:
            self.to_line(max(line, 0))
        self.refresh()
        self._stop.set()
        if not needle:
            self.only_matches(filtered=False)
        if needle and self.lines is not None and not self.filtered:
            self._stop = threading.Event()
            self._search(self.lines, needle, self.cursor, step, self._stop)
        else:
            self.post_message(self.Searched(""))

    def find_next(self, step: int) -> None:
        if not self.needle or self.lines is None:
            return
        if self.filtered:  # every entry is a match
            self.move_to((self.cursor + step) % max(self.count, 1))
            return
        self._stop.set()
        self._stop = threading.Event()
        self._search(self.lines, self.needle, self.cursor + step, step, self._stop)

    @work(thread=True, group="log-search", exit_on_error=False)
    def _search(self, lines: Lines, needle: str, start: int, step: int,
                stop: threading.Event) -> None:
        dropped = gone(lines)
        found = lines.find(needle, start, step, stop)
        around = False
        if found is None and not stop.is_set():  # go on from the other end
            found = lines.find(needle, 0 if step > 0 else len(lines) - 1, step, stop)
            around = found is not None
        if not stop.is_set():
            self.call_later(self._found, lines, found, around, dropped)

    def _found(self, lines: Lines, found: int | None, around: bool, dropped: int) -> None:
        if lines is not self.lines or not self.is_mounted:
            return
        if found is None:
            self.post_message(self.Searched(f"Not found: {self.needle}"))
            return
        self.post_message(self.Searched("Search wrapped around" if around else ""))
        self.to_line(found - (gone(lines) - dropped))
        if not self.wrapped:
            self._aside_to_needle()

    def _count_again(self) -> None:
        """Count the matches from the first line on."""
        self._counting.set()
        self._counting = threading.Event()
        self._matches = Matches(self.needle) if self.needle else None
        self._count_on()

    def _count_on(self) -> None:
        """Look for matches in what has not been looked at, in a thread."""
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
        elif self.filtered:
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
            self._stop.set()
            self._stop = threading.Event()
            self._seek(self.lines, wanted, self._stop)
        elif number:
            self.post_message(self.Searched(
                f"Neither a line nor a time: {where}. Type 1234, 14:05 or 2026-11-22 14:05:10"))

    @work(thread=True, group="log-search", exit_on_error=False)
    def _seek(self, lines: Lines, wanted: times.Stamp, stop: threading.Event) -> None:
        dropped, found = gone(lines), times.find(lines, wanted)
        if stop.is_set():
            return
        if isinstance(found, str):
            self.call_later(self.post_message, self.Searched(f"Not found: {found}"))
        else:
            self.call_later(self._found, lines, found, False, dropped)
