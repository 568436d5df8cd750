"""The numbers of all lines that hold a text, found piece by piece while the log grows."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right

from gpu_panel.run.log.file import Lines

MOST = 4_000_000
"""Matching lines that are counted: 32 MB of numbers."""
_BACK = 2048
"""Lines that are looked at together, backwards."""


class Matches:
    """The matches of one text in one log. `extend` may run in another thread than the rest."""

    def __init__(self, needle: str) -> None:
        self.needle = needle
        self.numbers: array[int] = array("q")
        """Line numbers, rising. Replaced as a whole, so that a reader sees one state."""
        self._upto = 0
        """Every line before this one has been looked at, and can't change any more."""
        self.complete = False
        """Whether every line was looked at, when `extend` was called last."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def full(self) -> bool:
        return len(self.numbers) >= MOST

    def extend(self, lines: Lines, stop: threading.Event) -> bool:
        """Look at the next lines, about 256 KiB of them. Returns whether there are more. The last
        line is looked at again the next time, as it may still grow."""
        total = len(lines)
        if self.full or self._upto >= total:
            self.complete = not self.full
            return False
        found, after = lines.matching(self.needle, self._upto, stop)
        if stop.is_set():
            return False
        kept = self.numbers[:bisect_left(self.numbers, self._upto)]
        kept.extend(n for n in found if n < total)
        self.numbers = kept
        self._upto = min(max(after, self._upto + 1), total - 1)
        self.complete = after >= total
        return not self.complete

    def place(self, line: int) -> int | None:
        """Which of the matches a line is, from 0; None if it is none."""
        at = bisect_left(self.numbers, line)
        return at if at < len(self.numbers) and self.numbers[at] == line else None

    def knows(self, line: int) -> bool:
        """Whether `nearest` of this line stays as it is."""
        return self.complete or self.full or (bool(self.numbers) and self.numbers[-1] >= line)

    def nearest(self, line: int) -> int:
        """The place of the first match at or after a line; of the last if there is none."""
        return max(min(bisect_left(self.numbers, line), len(self.numbers) - 1), 0)

    def beside(self, line: int, step: int) -> tuple[int, bool] | None:
        """(the next match from a line on, or with step -1 the one before it, whether it is beyond
        the end of the log). None: there is none, or it is not known yet."""
        done = self.complete or self.full
        at = bisect_left(self.numbers, line) if step > 0 else bisect_right(self.numbers, line) - 1
        around = not 0 <= at < len(self.numbers)
        if not self.numbers or not (done or (step > 0 and not around) or (
                step < 0 and not around and self._upto > line)):
            return None
        return (self.numbers[0 if step > 0 else -1] if around else self.numbers[at]), around


def last_before(lines: Lines, needle: str, line: int, stop: threading.Event) -> int | None:
    """The last line with `needle` up to `line`, looked for from there backwards; None: none has
    it, or it was stopped."""
    end = line + 1
    while end > 0 and not stop.is_set():
        at = begin = max(end - _BACK, 0)
        last = None
        while at < end and not stop.is_set():
            found, after = lines.matching(needle, at, stop)
            last = next((n for n in reversed(found) if n < end), last)
            at = max(after, at + 1)
        if last is not None:
            return last
        end = begin
    return None
