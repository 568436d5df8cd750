"""A run as one line of text. Pure, so that tests can read the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.clean import clean
from gpu_engine.spec import modes
from gpu_panel.charts.sparkline import sparkline
from gpu_panel.common import units
from gpu_panel.common.rows import Line, Part, Row, fit
from gpu_panel.launch.runs.feed import RunLine
from gpu_panel.run.text.states import glyph, tone


@dataclass(frozen=True, slots=True)
class RunColumns:
    """The width of each column in cells; 0 for a column that is not shown."""

    id: int
    name: int
    mode: int
    steps: int = 24
    curve: int = 10
    rate: int = 12

    def used(self) -> int:
        """The width of a whole line in cells, gaps included."""
        end = 12  # "04:12 left"
        parts = (11, self.id, self.name, self.mode, self.steps, 11, self.curve, self.rate, end)
        return sum(p + 2 for p in parts if p) - 2


def columns(lines: Sequence[RunLine], width: int) -> RunColumns:
    """The columns that fit into `width` cells; the least important are dropped first."""
    c = RunColumns(max((len(line.id) for line in lines), default=4),
                min(22, max((len(clean(line.name)) for line in lines), default=4)),
                max((len(_mode(line)) for line in lines), default=4))
    for narrower in (c, replace(c, curve=8), replace(c, steps=14, curve=8),
                     replace(c, steps=14, curve=6, rate=0), replace(c, steps=5, curve=6, rate=0),
                     replace(c, steps=5, curve=0, rate=0),
                     replace(c, steps=5, curve=0, rate=0, name=min(c.name, 10)),
                     replace(c, steps=0, curve=0, rate=0, name=min(c.name, 8))):
        if narrower.used() <= width:
            break
    return narrower


def run_line(line: RunLine, c: RunColumns) -> Line:
    """One run on one line."""
    loss = f"loss {units.loss(line.loss)}" if line.loss is not None else ""
    parts: list[Part] = [
        (f"{glyph(line.state)} {line.state:<10} ", tone(line.state)),
        (fit(clean(line.id), c.id) + "  ", "strong"),
        (fit(clean(line.name), c.name) + "  ", ""),
        (fit(_mode(line), c.mode) + "  ", "dim"),
    ]
    if line.step is None and line.loss is None:  # nothing was trained: there is room for the reason
        if not line.live:
            return (*parts, *_end(line))
        if line.reason:
            return (*parts, (clean(line.reason), "dim" if line.job else "bad"))
    if c.steps:
        parts.append((fit(_steps(line, c.steps), c.steps) + "  ", ""))
    parts.append((fit(loss, 11) + "  ", ""))
    if c.curve:
        parts.append((fit(sparkline(line.history, c.curve), c.curve) + "  ", "accent"))
    if not line.live:
        return (*parts, *_end(line))
    if line.reason:  # it waits for its restart, or in Slurm's queue
        return (*parts, (clean(line.reason), "dim" if line.job else "bad"))
    if line.still:
        return (*parts, (f"! {clean(line.still)}", "warn"))
    if c.rate:
        known = line.samples_per_s is not None or line.steps_per_s is not None
        rate = units.pace(line.samples_per_s, line.steps_per_s) if known else ""
        parts.append((f"{rate:>{c.rate}}  ", ""))
    left = f"{units.clock(line.seconds_left)} left" if line.seconds_left is not None else ""
    return (*parts, (left, ""))


def _end(line: RunLine) -> Line:
    """How a run ended: the reason if it ended badly, and how long ago."""
    bad = line.state in ("failed", "lost", "unreadable")
    parts: list[Part] = []
    if line.reason and bad:
        parts.append((clean(line.reason), "warn" if line.state == "unreadable" else "bad"))
    elif line.reason and line.step is None:
        parts.append((clean(line.reason), "dim"))
    if line.odd and line.state != "unreadable" and line.odd != line.reason:
        parts.append((clean(line.odd), "warn"))
    if line.ended:
        parts.append((units.ago(time.time() - line.ended), "dim"))
    joined: list[Part] = []
    for i, part in enumerate(parts):
        joined += [(" · ", "dim"), part] if i else [part]
    return tuple(joined)


def _mode(line: RunLine) -> str:
    mode = modes.find(line.mode)
    name = mode.short if mode else clean(line.mode, 12)
    return name + (f"×{line.world}" if line.world > 1 else "")


def _steps(line: RunLine, width: int) -> str:
    """How far a run has got: "step 1,240 of 5,862", "1,240/5,862" or "21 %"."""
    if line.step is None:
        return ""
    if width < 10:
        return units.share(line.step / line.total) if line.total else ""
    total = f"{line.total:,}" if line.total else ""
    if width < 20:
        return f"{line.step:,}" + (f"/{total}" if total else "")
    return f"step {line.step:,}" + (f" of {total}" if total else "")


def text_row(text: str) -> Row:
    """A row of text that the cursor skips."""
    return Row("", (((text, "dim"),),))
