"""The tables of the compare screen: how each run ended, and in which settings, commits and versions
they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from gpu_engine.common.clean import clean
from gpu_engine.runs import compare
from gpu_panel import keys
from gpu_panel.common.rows import Line, Part, Row, Rows, cells, fit
from gpu_panel.compare.pane import CompareTable

_NAME = 22


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


_LEAST = 10


class DifferencesPane(CompareTable):
    """One row for each setting that differs, and a column for each run."""

    NAME = "differences"
    TITLE = "differences"
    KEYS = keys.of("compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """The settings in which the runs differ, and after them the commit, versions, devices
and machine, as far as they differ too. Everything that is not listed is the same."""
    DEFAULT_CSS = "DifferencesPane { height: auto; min-height: 3; }"

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.store is None or any(one.state is None for one in self.store.runs):
            return None, [Row("", ((("Reading …", "dim"),),))]
        facts = self.store.facts
        settings = compare.setting_rows([one for one in facts if one.settings])
        others = compare.environment_rows(facts)
        head = max((cells(row.name) for row in (*settings, *others)), default=0)
        head = min(head, width // 3)
        values = [cells(compare.cell(v)) for row in (*settings, *others) for v in row.values]
        widest = max([*values, *(cells(one.id) + 3 for one in facts)])
        most = max((width - head) // (min(widest, _LEAST) + 2), 1)
        count = min(len(facts), most)
        self.first = min(self.first, len(facts) - count)
        size = max(min(widest, (width - head) // count - 2), 1)
        shown = range(self.first, self.first + count)
        self.hidden = shown[-1] < len(facts) - 1
        top: list[Part] = [(" " * head, "dim")]
        for i in shown:
            sample, style = self.stroke(i)
            top.append((f"  {sample}" + fit(facts[i].id, size - 3), style))
        problems = [clean(f"{one.id}: its settings can't be read: {one.problem}")
                    for one in self.store.runs if one.problem is not None]
        rows = [Row("", (((text, "warn"),),)) for text in problems]
        for title, found in (("settings", settings), ("environment", others)):
            if rows and found:
                rows.append(Row("", ((("", ""),),)))
            for row in found:
                parts: list[Part] = [(fit(row.name, head), "strong")]
                of = dict(zip((i for i, one in enumerate(facts) if one.settings), row.values,
                              strict=True)) if title == "settings" else dict(enumerate(row.values))
                parts += [("  " + fit(compare.cell(of.get(i)), size), "") for i in shown]
                rows.append(Row(f"{title} {row.name}", (tuple(parts),)))
        if not settings:
            rows.insert(len(problems), Row("", ((("No setting differs.", "dim"),),)))
        self.entitle(f"differences ─ {len(settings)} in settings, {len(others)} in the environment"
                     + (" ─ ← →: more runs" if self.hidden or self.first else ""))
        return tuple(top), rows
