"""The runs table: live ones with their figures, earlier ones with how they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpu_engine.common.clean import clean
from gpu_engine.plan import modes
from gpu_panel import keys
from gpu_panel.charts.sparkline import sparkline
from gpu_panel.common import units
from gpu_panel.common.rows import Line, Part, Row, Rows, fit
from gpu_panel.launch.runs.feed import RunLine
from gpu_panel.run.text.states import glyph, tone


class RunsTable(Rows):
    """One line a run, newest first, live ones on top."""

    HELP = """Runs go on when the panel closes; this list finds them again. Enter watches a run,
live or finished. s asks its ranks to finish their step, save and end; u starts another attempt of
one that has ended; x deletes the folder of a finished run with its checkpoints, X those of all but
the newest."""
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("runs"))

    @dataclass
    class Wanted(Message):
        """The person wants something done with a run: open | stop | resume | remove."""

        what: str
        line: RunLine

    @dataclass
    class Prune(Message):
        """All but the newest are to go."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: tuple[RunLine, ...] | None = None
        self._unread = 0
        self._fitting: Columns | None = None
        self._made: dict[str, tuple[RunLine, str, Row]] = {}
        """Rows as they were shown last, with what they were made of."""
        self._could: object = None
        self.entitle("Runs")

    def show(self, lines: Sequence[RunLine], unread: int = 0) -> None:
        """`unread`: how many more there are, older than these."""
        self.lines, self._unread = tuple(lines), unread
        live = sum(line.live for line in lines)
        earlier = len(lines) - live + unread
        said = ([f"{live} running"] if live else []) + ([f"{earlier} earlier"] if earlier else [])
        self.entitle("Runs" + (f" ─ {' · '.join(said)}" if said else ""))
        self.repaint()
        self._offer()

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self._offer()

    def _offer(self) -> None:
        """Tell the footer when something else can be done with the run under the cursor."""
        line = self.line_at_cursor
        if (could := line and line.live) is not self._could:
            self._could = could
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A run is stopped or resumed, never both: the footer has the one that can be done."""
        line = self.line_at_cursor
        if line is not None and line.state == "unreadable" and action in ("resume", "remove"):
            return None
        if action == "resume":
            return line is not None and not line.live
        if action == "stop" and line is not None:
            return line.live
        if action in ("stop", "open", "remove"):
            return None if line is None or (action == "remove" and line.live) else True
        return True

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.lines is None:
            return None, [_words("Looking for runs …")]
        if not self.lines:
            return None, [_words("No runs yet. ctrl+l launches what the form says.")]
        if (fitting := columns(self.lines, width)) != self._fitting:
            self._fitting, self._made = fitting, {}
        now = time.time()
        rows = [self._row(line, fitting, now) for line in self.lines]
        self._made = {row.key: made for row in rows if (made := self._made.get(row.key))}
        if self._unread:
            rows.append(_words(f"reading {self._unread:,} older ones …"))
        return None, rows

    def _row(self, line: RunLine, fitting: Columns, now: float) -> Row:
        """Made anew only where something of it has changed: of a thousand hardly any has."""
        ago = units.ago(now - line.ended) if line.ended and not line.live else ""
        known = self._made.get(line.id)
        if known is not None and known[0] is line and known[1] == ago:
            return known[2]
        row = Row(line.id, (run_line(line, fitting),))
        self._made[line.id] = (line, ago, row)
        return row

    @property
    def line_at_cursor(self) -> RunLine | None:
        key = self.key_at_cursor
        return next((line for line in self.lines or () if line.id == key), None)

    def action_open(self) -> None:
        self._want("open")

    def action_stop(self) -> None:
        self._want("stop")

    def action_resume(self) -> None:
        self._want("resume")

    def action_remove(self) -> None:
        self._want("remove")

    def action_prune(self) -> None:
        if self.lines:
            self.post_message(self.Prune())

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._want("open")

    def _want(self, what: str) -> None:
        if self.line_at_cursor is not None:
            self.post_message(self.Wanted(what, self.line_at_cursor))


@dataclass(frozen=True, slots=True)
class Columns:
    """How wide each column is; 0: not shown."""

    id: int
    name: int
    mode: int
    steps: int = 24
    curve: int = 10
    rate: int = 12

    def used(self) -> int:
        end = 12  # "04:12 left"
        parts = (11, self.id, self.name, self.mode, self.steps, 11, self.curve, self.rate, end)
        return sum(p + 2 for p in parts if p) - 2


def columns(lines: Sequence[RunLine], width: int) -> Columns:
    """What fits into `width`, the least telling column dropped first."""
    c = Columns(max((len(line.id) for line in lines), default=4),
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


def run_line(line: RunLine, c: Columns) -> Line:
    """One run on one line."""
    loss = f"loss {units.loss(line.loss)}" if line.loss is not None else ""
    parts: list[Part] = [
        (f"{glyph(line.state)} {line.state:<10} ", tone(line.state)),
        (fit(clean(line.id), c.id) + "  ", "strong"),
        (fit(clean(line.name), c.name) + "  ", ""),
        (fit(_mode(line), c.mode) + "  ", "dim"),
    ]
    if not line.live and line.step is None and line.loss is None:
        return (*parts, *_end(line))  # nothing was trained: the reason has the room
    if c.steps:
        parts.append((fit(_steps(line, c.steps), c.steps) + "  ", ""))
    parts.append((fit(loss, 11) + "  ", ""))
    if c.curve:
        parts.append((fit(sparkline(line.history, c.curve), c.curve) + "  ", "accent"))
    if not line.live:
        return (*parts, *_end(line))
    if line.reason:  # it waits to begin again
        return (*parts, (clean(line.reason), "bad"))
    if line.still:
        return (*parts, (f"! {clean(line.still)}", "warn"))
    if c.rate:
        known = line.samples_per_s is not None or line.steps_per_s is not None
        rate = units.pace(line.samples_per_s, line.steps_per_s) if known else ""
        parts.append((f"{rate:>{c.rate}}  ", ""))
    left = f"{units.clock(line.seconds_left)} left" if line.seconds_left is not None else ""
    return (*parts, (left, ""))


def _end(line: RunLine) -> Line:
    """How it ended: the reason where it is bad, and how long ago."""
    bad = line.state in ("failed", "lost", "unreadable")
    said: list[Part] = []
    if line.reason and bad:
        said.append((clean(line.reason), "warn" if line.state == "unreadable" else "bad"))
    if line.odd and line.state != "unreadable" and line.odd != line.reason:
        said.append((clean(line.odd), "warn"))
    if line.ended:
        said.append((units.ago(time.time() - line.ended), "dim"))
    parts: list[Part] = []
    for i, part in enumerate(said):
        parts += [(" · ", "dim"), part] if i else [part]
    return tuple(parts)


def _mode(line: RunLine) -> str:
    mode = modes.find(line.mode)
    name = mode.short if mode else clean(line.mode, 12)
    return name + (f"×{line.world}" if line.world > 1 else "")


def _steps(line: RunLine, width: int) -> str:
    """"step 1,240 of 5,862", "1,240/5,862" or "21 %"."""
    if line.step is None:
        return ""
    if width < 10:
        return units.share(line.step / line.total) if line.total else ""
    total = f"{line.total:,}" if line.total else ""
    if width < 20:
        return f"{line.step:,}" + (f"/{total}" if total else "")
    return f"step {line.step:,}" + (f" of {total}" if total else "")


def _words(text: str) -> Row:
    return Row("", (((text, "dim"),),))
