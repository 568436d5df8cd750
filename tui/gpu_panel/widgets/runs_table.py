"""The runs table: live ones with their figures, earlier ones with how they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpu_engine.clean import clean
from gpu_engine.spec import MODE_NAMES
from gpu_panel import keys, units
from gpu_panel.runs_feed import RunLine, sparkline
from gpu_panel.widgets.rows import Line, Part, Row, Rows, fit

GLYPHS = {"queued": ("◌", "dim"), "starting": ("◔", "accent"), "running": ("●", "accent"),
          "stopping": ("◐", "warn"), "completed": ("✓", "good"), "stopped": ("■", "warn"),
          "failed": ("✗", "bad"), "lost": ("?", "bad")}


class RunsTable(Rows):
    """One line a run, newest first, live ones on top."""

    HELP = """Runs go on when the panel closes; this list finds them again. Enter watches a run,
live or finished. s asks its ranks to finish their step, save and end; x deletes the folder of a
finished run with its checkpoints."""
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("runs")]

    @dataclass
    class Wanted(Message):
        """The person wants something done with a run: open | stop | remove."""

        what: str
        line: RunLine

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: tuple[RunLine, ...] | None = None
        self._older = 0
        self.border_title = "Runs"

    def show(self, lines: Sequence[RunLine], older: int) -> None:
        self.lines, self._older = tuple(lines), older
        live = sum(line.live for line in lines)
        earlier = len(lines) - live + older
        said = ([f"{live} running"] if live else []) + ([f"{earlier} earlier"] if earlier else [])
        self.border_title = "Runs" + (f" ─ {' · '.join(said)}" if said else "")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.lines is None:
            return None, [_words("Looking for runs …")]
        if not self.lines:
            return None, [_words("No runs yet. ctrl+l launches what the form says.")]
        names = min(22, max(len(clean(line.name)) for line in self.lines))
        ids = max(len(line.id) for line in self.lines)
        rows = [Row(line.id, (run_line(line, width, names, ids),)) for line in self.lines]
        if self._older:
            rows.append(_words(f"and {self._older} older: gpu-engine runs lists them"))
        return None, rows

    @property
    def line_at_cursor(self) -> RunLine | None:
        key = self.key_at_cursor
        return next((line for line in self.lines or () if line.id == key), None)

    def action_open(self) -> None:
        self._want("open")

    def action_stop(self) -> None:
        self._want("stop")

    def action_remove(self) -> None:
        self._want("remove")

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._want("open")

    def _want(self, what: str) -> None:
        if self.line_at_cursor is not None:
            self.post_message(self.Wanted(what, self.line_at_cursor))


def run_line(line: RunLine, width: int, names: int = 16, ids: int = 4) -> Line:
    """One run in `width` cells."""
    glyph, style = GLYPHS.get(line.state, ("?", "dim"))
    mode = MODE_NAMES.get(line.mode, line.mode)
    mode = ("DP" if line.mode == "dp" else mode) + (f"×{line.world}" if line.world > 1 else "")
    wide = width >= 110
    head: list[Part] = [
        (f"{glyph} {line.state:<9}  ", style),
        (fit(clean(line.id), ids) + "  ", "strong"),
        (fit(clean(line.name), names) + "  ", ""),
        (fit(clean(mode), 13 if wide else 8) + "  ", "dim"),
    ]
    loss = f"loss {units.loss(line.loss)}" if line.loss is not None else ""
    curve = sparkline(line.history, 10 if wide else 6) if line.history else ""
    body: list[Part] = [(fit(_steps(line, wide), 24 if wide else 12) + "  ", "")]
    body += [(fit(loss, 11) + " ", ""), (fit(curve, 10 if wide else 6) + "  ", "accent")]
    if line.live:
        rate = units.rate(line.samples_per_s) if line.samples_per_s is not None else ""
        left = f"{units.clock(line.seconds_left)} left" if line.seconds_left is not None else ""
        tail = f"{rate:>9}  {left}" if wide else left
    else:
        ended = units.ago(time.time() - line.ended) if line.ended else ""
        why = f" · {clean(line.reason)}" if line.reason and line.state in ("failed", "lost") else ""
        tail = f"{ended}{why}"
    return (*head, *body, (tail, "" if line.live else "dim"))


def _steps(line: RunLine, wide: bool) -> str:
    if line.step is None:
        return ""
    if not wide:
        return f"{line.step:,}" + (f"/{line.total:,}" if line.total else "")
    return f"step {line.step:,}" + (f" of {line.total:,}" if line.total else "")


def _words(text: str) -> Row:
    return Row("", (((text, "dim"),),))
