"""Figures as text for people. Code and files use bytes, seconds and rates per second.

A value that is not known is shown as an en dash, never as a zero.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

UNKNOWN = "–"
GIB = 1 << 30


def _known(value: float | None) -> TypeGuard[float]:
    """Whether this is a finite number that can be shown."""
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def gib(size: float | None) -> str:
    """Bytes as GiB, without the unit: "34.1", "0.25", "812"."""
    if not _known(size):
        return UNKNOWN
    value = size / GIB
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.95 or value == 0 else f"{value:.2f}"


def size(count: float | None) -> str:
    """Bytes with the unit that fits: "812 B", "3.4 MiB", "34.1 GiB"."""
    if not _known(count):
        return UNKNOWN
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def rate(per_s: float | None) -> str:
    """A rate per second: "12.4k/s", "980/s", "0.52/s"."""
    if not _known(per_s):
        return UNKNOWN
    return f"{short(per_s)}/s"


def pace(samples_per_s: float | None, steps_per_s: float | None) -> str:
    """Examples per second: "12.4k examples/s". If they are not known, as with a person's own
    script, steps per second: "21.3 steps/s"."""
    return f"{short(samples_per_s)} examples/s" if _known(samples_per_s) \
        else pace_cell(None, steps_per_s)


def pace_cell(samples_per_s: float | None, steps_per_s: float | None) -> str:
    """The same in a column under "examples/s": "12.4k", "21.3 steps/s"."""
    if _known(samples_per_s):
        return short(samples_per_s)
    return f"{short(steps_per_s)} steps/s" if _known(steps_per_s) else UNKNOWN


def short(value: float) -> str:
    """A number in few characters: "12.4k", "980", "0.52"."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            part = value / factor
            return f"{part:.0f}{letter}" if part >= 99.95 else f"{part:.1f}{letter}"
    if abs(value) >= 99.5 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


def brief(seconds: float) -> str:
    """A short time to three digits: "13.8 ms", "2.5 s"."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def clock(seconds: float | None) -> str:
    """A length of time: "04:12", "1:02:03", "2 d 03:04"."""
    if not _known(seconds):
        return UNKNOWN
    whole = max(int(seconds), 0)
    days, rest = divmod(whole, 86400)
    hours, minutes = rest // 3600, rest // 60 % 60
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{rest % 60:02d}"
    return f"{minutes:02d}:{rest % 60:02d}"


def time_of_day(when: float, now: float) -> str:
    """A moment on this machine's clock: "22:00", or "Nov 23 22:00" on another day than `now`. Both
    in Unix seconds."""
    then = time.localtime(when)
    same = time.localtime(now)[:3] == then[:3]
    return time.strftime("%H:%M" if same else "%b %d %H:%M", then)


def span(seconds: float) -> str:
    """A length of time in a sentence, where "01:00" could be a clock's: "50 s", "12 min", "3 h",
    "5 days"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def ago(seconds: float | None) -> str:
    """How long ago: "just now", "12 min ago", "3 h ago", "5 days ago"."""
    if not _known(seconds):
        return UNKNOWN
    return "just now" if seconds < 10 else f"{span(seconds)} ago"


def share(x: float | None) -> str:
    """A share from 0 to 1, as a percentage: "74 %"."""
    if not _known(x):
        return UNKNOWN
    return f"{x * 100:.0f} %"


def loss(x: float | None) -> str:
    """A loss: "1.832", "0.0061", "1.2e-05", "NaN", "inf"."""
    if x is None:
        return UNKNOWN
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    size = abs(x)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 1e6:
        return f"{x:.1e}"
    if size < 0.1:
        return f"{x:.4f}"
    return f"{x:.3f}" if size < 100 else f"{x:,.1f}"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "1,240 runs"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def count(x: int | None) -> str:
    """A whole number: "1,240"."""
    return UNKNOWN if x is None else f"{x:,}"
