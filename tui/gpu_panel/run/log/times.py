"""Going to a time in a log whose lines begin with one. Pure but for reading lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from gpu_panel.run.log.file import Lines

_DATED = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ,]+(\d\d):(\d\d)(?::(\d\d))?")
_TIME = re.compile(r"(?<![\d:.])(\d{1,2}):(\d\d)(?::(\d\d))?(?![\d:])")
_WITHIN = 60
"""Characters at the start of a line in which its time is looked for."""
_NEAR = 400
"""Lines without a time between two with one, at most: a traceback has fewer."""
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time of day in seconds, and the day as a number if it is told."""

    seconds: int
    day: int | None = None

    @property
    def whole(self) -> int:
        """Seconds since the day 0; without a day, since midnight."""
        return (self.day or 0) * DAY + self.seconds


def stamp_in(text: str) -> Stamp | None:
    head = text[:_WITHIN]
    dated = _DATED.search(head)
    if dated is not None:
        year, month, day, hour, minute, second = (int(v or 0) for v in dated.groups())
        try:
            number = date(year, month, day).toordinal()
        except ValueError:
            return None
        return _stamp(hour, minute, second, number)
    timed = _TIME.search(head)
    if timed is None or timed[3] is None:  # "3:20" alone is often a length of time, or a ratio
        return None
    return _of_day(timed)


def typed(text: str) -> Stamp | None:
    """What a person means: "14:05", "14:05:10", "2026-11-22 14:05"; None if it is no time."""
    text = text.strip()
    dated, timed = _DATED.fullmatch(text), _TIME.fullmatch(text)
    if dated is not None:
        return stamp_in(text)
    return None if timed is None else _of_day(timed)


def find(lines: Lines, wanted: Stamp) -> int | str:
    """The first line at or after this time, or why there is none, for people. Times in a log
    rise. A time without a day means the last such time in the log."""
    total = len(lines)
    first, last = _stamped(lines, 0, 1), _stamped(lines, total - 1, -1)
    if first is None or last is None:
        return "the lines of this log have no times"
    goal = wanted.whole
    if wanted.day is None and last[1].day is not None:
        goal += last[1].day * DAY
        if goal > last[1].whole:
            goal -= DAY
    elif wanted.day is not None and last[1].day is None:
        goal = wanted.seconds
    if goal > last[1].whole:
        return f"the last time in this log is {_text(last[1])}"
    low, high = first[0], last[0]
    while low < high:
        middle = (low + high) // 2
        found = _stamped(lines, middle, 1, high)
        if found is None or found[1].whole >= goal:
            high = middle
        else:
            low = found[0] + 1
    at = _stamped(lines, low, 1)
    return at[0] if at is not None else last[0]


def _stamped(lines: Lines, start: int, step: int, end: int | None = None,
             ) -> tuple[int, Stamp] | None:
    stop = min(max(start + step * _NEAR, -1), len(lines) if end is None else end + 1)
    for number in range(start, stop, step):
        stamp = stamp_in(lines.line(number))
        if stamp is not None:
            return number, stamp
    return None


def _of_day(found: re.Match[str]) -> Stamp | None:
    return _stamp(int(found[1]), int(found[2]), int(found[3] or 0), None)


def _stamp(hour: int, minute: int, second: int, day: int | None) -> Stamp | None:
    if hour > 23 or minute > 59 or second > 59:
        return None
    return Stamp(hour * 3600 + minute * 60 + second, day)


def _text(stamp: Stamp) -> str:
    clock = f"{stamp.seconds // 3600:02d}:{stamp.seconds // 60 % 60:02d}:{stamp.seconds % 60:02d}"
    return clock if stamp.day is None else f"{date.fromordinal(stamp.day).isoformat()} {clock}"
