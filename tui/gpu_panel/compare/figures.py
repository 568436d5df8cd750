"""The table of the compared runs: one run a row, with how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from gpu_engine.runs import compare
from gpu_panel import keys
from gpu_panel.common.rows import Line, Part, Row, Rows, cells, fit
from gpu_panel.compare.pane import CompareTable

_NAME = 22
"""The widest name."""


class FiguresPane(CompareTable):
    """One row for each run; the one under the cursor is drawn on top in the chart."""

    NAME = "figures"
    TITLE = "runs"
    KEYS = keys.of("compare-runs", "compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """How each run ended, or how far it is: its last loss (the mean of the ranks), its last
evaluation, the time of its attempts, its speed and the most memory that it took."""
    DEFAULT_CSS = "FiguresPane { height: auto; min-height: 3; }"

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.store is None:
            return None, []
        facts = self.store.facts
        columns = compare.figure_rows(facts)
        ids = max(cells(one.id) for one in facts)
        names = min(_NAME, max(cells(one.name) for one in facts))
        sizes = [max(cells(c.name), *(cells(compare.cell(v)) for v in c.values)) for c in columns]
        self.first = min(self.first, max(len(columns) - 1, 0))
        room, shown = width - 4 - ids - names, []
        for at in range(self.first, len(columns)):
            room -= sizes[at] + 2
            if room < 0:
                break
            shown.append(at)
        self.hidden = bool(shown) and shown[-1] < len(columns) - 1
        head: list[Part] = [(" " * 3 + fit("run", ids + 1) + fit("name", names), "dim")]
        head += [("  " + columns[at].name.rjust(sizes[at]), "dim") for at in shown]
        rows = []
        for i, one in enumerate(facts):
            parts: list[Part] = [self.stroke(i), (fit(one.id, ids + 1), "strong"),
                                 (fit(one.name, names), "")]
            parts += [("  " + compare.cell(columns[at].values[i]).rjust(sizes[at]), "")
                      for at in shown]
            rows.append(Row(one.id, (tuple(parts),)))
        self.entitle("runs" + (" ─ ← →: more columns" if self.hidden or self.first else ""))
        return tuple(head), rows

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self.post_message(self.RunChosen(new))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()

    def action_open(self) -> None:
        from gpu_panel.run.screen import RunScreen

        if self.store is not None and self.store.runs:
            self.app.push_screen(RunScreen(self.store.runs[self.cursor].run))
