"""A run as a row of text. Pure, so that tests can read the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_panel.common import units
from gpu_panel.common.rows import Line, Part, Row, cells
from gpu_panel.launch.runs.columns import GAP, Layout

if TYPE_CHECKING:
    from gpu_panel.launch.runs.line import RunLine

MARK = "▣"
_BELOW = "  └ "


class RunText:
    """A line of text that is made when it is first drawn: of a thousand runs only a screenful
    is."""

    def __init__(self, line: RunLine, layout: Layout, marked: bool, below: bool) -> None:
        """As of `run_line`."""
        self._of = line, layout, marked, below

    @cached_property
    def _parts(self) -> Line:
        return run_line(*self._of)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)


def run_row(line: RunLine, layout: Layout, marked: bool = False) -> Row:
    """The row of a run: one line, and a second one if there is no room for why it failed, waits or
    stands still."""
    words = remarks(line)
    long = bool(words) and _length(joined([*words, *_ago(line)])) > layout.room
    first = RunText(line, layout, marked, long)
    return Row(line.id, (first, ((_BELOW, "dim"), *joined(words))) if long else (first,))


def run_line(line: RunLine, layout: Layout, marked: bool = False, below: bool = False) -> Line:
    """A run on one line. `below`: what is said of it stands in a line of its own."""
    parts: list[Part] = [(MARK + " " if marked else "  ", "accent")] if layout.marks else []
    for column, width in layout.columns:
        text, style = column.part(line, width)
        parts.append((text + " " * GAP, style))
    words = [] if below else remarks(line)
    if line.live and not words and line.seconds_left is not None:
        words = [(f"{units.clock(line.seconds_left)} left", "")]
    return (*parts, *joined([*words, *_ago(line)]))


def head_line(layout: Layout, by: str | None, turned: bool) -> Line:
    """The heads of the columns; the one that the runs are sorted by has an arrow."""
    text = "  " if layout.marks else ""
    for column, width in layout.columns:
        down = column.falls is not turned
        head = column.head + (("▼" if down else "▲") if column.name == by else "")
        text += (head.rjust(width) if column.right else head.ljust(width))[:width] + " " * GAP
    return ((text, "dim"),)


def remarks(line: RunLine) -> list[Part]:
    """What a person should know about a run: why it failed, waits or stands still, what is wrong
    with its folder."""
    parts: list[Part] = []
    if line.reason:
        waits = line.job or line.waits
        bad = line.state in ("failed", "lost") or (line.live and not waits)
        style = "warn" if line.state == "unreadable" else "bad" if bad else "dim"
        if bad or line.live or line.state == "unreadable" or line.step is None:
            parts.append((clean(line.reason), style))
    elif line.live and line.still:
        parts.append((f"! {clean(line.still)}", "warn"))
    if line.live or line.state == "completed":
        more = f" (and {len(line.warnings) - 1} more)" if len(line.warnings) > 1 else ""
        parts += [(f"! {clean(first)}{more}", "warn") for first in line.warnings[:1]]
    if line.odd and line.state != "unreadable" and line.odd != line.reason:
        parts.append((clean(line.odd), "warn"))
    return parts


def _ago(line: RunLine) -> list[Part]:
    if line.live or not line.ended:
        return []
    return [(units.ago(time.time() - line.ended), "dim")]


def joined(parts: Sequence[Part]) -> Line:
    out: list[Part] = []
    for part in parts:
        out += [(" · ", "dim"), part] if out else [part]
    return tuple(out)


def _length(line: Line) -> int:
    return sum(cells(text) for text, _ in line)


def text_row(text: str) -> Row:
    """A row of text that the cursor skips."""
    return Row("", (((text, "dim"),),))
