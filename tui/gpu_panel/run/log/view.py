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
from gpu_panel.run.log.scroll import LogScroll


class LogView(LogScroll):
    class Searched(Message):
        """A search has ended. `text`: a remark for the person, often empty."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def search(self, needle: str, step: int = -1) -> None:
        """Mark all matches of `needle` and go to the next (step 1) or the previous one (-1)."""
        line = self.line
        self.needle = needle
        self._sought = None
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
        """Go to the next match from a line on; later, if it is not counted yet."""
        self._sought = line, step
        if (matches := self._matches) is None:
            return
        found = matches.beside(line, step)
        if found is not None:
            self.post_message(self.Searched("Search wrapped around" if found[1] else ""))
            self._show_found(found[0])
        elif matches.complete or matches.full:
            self._sought = None
            self.post_message(self.Searched(f"Not found: {self.needle}"))

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
            found = times.find(self.lines, wanted)
            if isinstance(found, str):
                self.post_message(self.Searched(f"Not found: {found}"))
            else:
                self._show_found(found)
        elif number:
            self.post_message(self.Searched(
                f"Neither a line nor a time: {where}. Type 1234, 14:05 or 2026-11-22 14:05:10"))
