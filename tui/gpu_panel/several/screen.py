"""The screen of several runs: of a sweep, or of those that a person has chosen to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import ScreenResume
from textual.message import Message

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.runs import compare
from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Run
from gpu_engine.sweep.group import Done, Group
from gpu_engine.sweep.study import LEAST
from gpu_engine.sweep.table import FAILED, names
from gpu_panel import keys
from gpu_panel.charts.drawing import SAMPLES
from gpu_panel.commands import same
from gpu_panel.common import palette
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.errors import guarded
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.picking import pick
from gpu_panel.common.rows import Line, Part, Row, Rows, text_row
from gpu_panel.several import table
from gpu_panel.several.curves import Curves, CurvesPane
from gpu_panel.several.store import MOST, SeveralStore
from gpu_panel.several.table import Shown, Table

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

EVERY = 0.5
"""Seconds between two paints."""
_OF_SWEEP = {
    "stop": "All runs of this sweep have ended",
    "retry": "No run of this sweep has failed or was stopped",
    "compare": "There is only one run to compare", "value": "", "turn": "",
    "matters": f"Optuna says it of a search, from {LEAST} tries on that have completed"}
"""What can be done with a sweep only, and why with one it can't."""


async def ask_and_stop(app: App[Any], group: Group) -> bool:
    """Stop this sweep, which then gets no more runs either, if the person says yes. Call this from
    a worker. Returns whether it was asked to."""
    from gpu_engine.plan.own_command import on_stop
    from gpu_engine.sweep import group as sweeps

    plan = group.members[0][0].plan()
    first = "It asks for no more. " if group.asks else ""
    return await _ask_and_do(app, group, ["stop"], sweeps.stop, "Asked to stop", Confirm(
        f"Stop sweep {group.id}", f"{first}The runs that wait leave the queue. Of each that runs, "
        f"{on_stop(plan and plan.spec)}.", yes="Stop it", no="Keep running"))


async def _ask_and_do(app: App[Any], group: Group, words: Sequence[str],
                      action: Callable[[Group], Done], told: str, question: Confirm) -> bool:
    if not await app.push_screen_wait(question):
        return False
    done = await in_thread(lambda: action(group))
    many = f"{told}: {units.counted(len(done.runs), 'run')}"
    same.done(app, "; ".join(filter(None, ["" if done.search and not done.runs else many,
                                           done.search])),
              [["sweep", words[0], group.id, *words[1:]]], trouble=done.trouble)
    return True


class SeveralPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """A table of the runs."""

    NAME = "several"
    TITLE = "runs"
    KEYS = keys.of("several-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"stop", "retry", "matters"})
    HELP = """How each run has ended, or how far it is: its last loss (the mean of the ranks), its
last evaluation, the time of its attempts, its speed and the most memory that it took. Of a sweep,
a line for each combination of values, the best first: the best and the last value of its completed
runs (mean ± sample standard deviation, and their number); ~ marks combinations without a completed
run. Enter shows the runs of a line, and opens one. b chooses the value to rank by, O whether the
least or the greatest is best. c compares the runs of the line, or the best ones if it has only one.
s stops the whole sweep, u retries failed runs, or those that were stopped. Below, of a search, how
far it has got; w asks Optuna which values matter, and the second chart is then of the first."""
    DEFAULT_CSS = "SeveralPane { height: auto; min-height: 4; max-height: 30%; }"

    @dataclass
    class Moved(Message):
        """The cursor is on another row."""

        pane: SeveralPane

    def __init__(self, store: SeveralStore) -> None:
        super().__init__(id=self.NAME)
        self.store = store
        self._rows: Sequence[Shown] = ()
        self._unfolded: set[str] = set()
        self._skipped = 0
        """Of the columns that are scrolled, those on the left of what is shown."""

    def repaint(self) -> None:
        super().repaint()
        self.styles.height = self.rows_wanted
        self.refresh_bindings()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        store = self.store
        if store.sweep and store.group is None:
            return None, [text_row("Reading the sweep …")]
        if store.sweep and not store.members:
            return None, [text_row("None of its runs exists any more")]
        shown = self.table()
        self._rows = shown.rows
        self._skipped = min(self._skipped, max(len(shown.columns) - shown.fixed - 1, 0))
        head, rows = shown.build(width, self._skipped)
        if store.group is not None:
            rows += table.below(store.points, store.by, store.group.of, width, store.search)
        return head, rows

    def table(self) -> Table:
        store = self.store
        if store.group is None:
            facts = store.facts
            return table.of_chosen(facts, compare.figure_rows(facts), self.strokes(), right=True)
        self.entitle(store.title, "b value · O least/greatest · y copy")
        return table.of_sweep(store.points, store.group.keys, store.by, self.strokes(),
                              unfolded=self._unfolded)

    def strokes(self) -> Mapping[str, Part]:
        """A piece of the line of each run in the chart."""
        runs, app = self.store.runs, self.app
        return {ident: (SAMPLES[palette.dash_of(app, i) % len(SAMPLES)] + " ", f"hue {i}")
                for i in [curve.index for curve in self.store.curves()]
                for ident in (runs[i].id, runs[i].run.id)}

    # --- the cursor ----------------------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self.refresh_bindings()
        self.post_message(self.Moved(self))

    @property
    def ids(self) -> tuple[str, ...]:
        """Those of the runs in the row under the cursor."""
        return next((row.ids for row in self._rows if row.key == self.key_at_cursor), ())

    def _to_compare(self) -> Sequence[str]:
        """The runs of the line under the cursor; if it has only one, those of all lines, the best
        first."""
        every = [one.id for point in self.store.points for one in point.members]
        return self.ids if len(self.ids) > 1 else every

    def placeholders(self) -> Values:
        from gpu_panel.commands.own import of_run

        return of_run(self.store.run(self.ids[0])) if len(self.ids) == 1 else {}

    # --- what the keys do ----------------------------------------------------------------------

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        if action not in _OF_SWEEP or self.store.sweep:
            return _OF_SWEEP.get(action, "")
        # Its key then chooses what the chart shows.
        return "" if action == "compare" else "That is done with a sweep, and these runs are none"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        store = self.store
        can = {"matters": store.search is not None and store.search.completed >= LEAST,
               "retry": any(self._again()) or self._search_stopped, "stop": store.goes_on,
               "compare": len(self._to_compare()) > 1}
        return can.get(action, bool(store.members) or action not in _OF_SWEEP)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        key = self.key_at_cursor
        if key is not None and key.startswith(table.POINT):
            self._unfolded ^= {key}
            self.repaint()
        elif key is not None:
            from gpu_panel.run.screen import RunScreen

            self.app.push_screen(RunScreen(self.store.run(key)))

    def action_scroll(self, by: int) -> None:
        self._skipped = max(self._skipped + by, 0)
        self.repaint()

    def action_compare(self) -> None:
        self.app.push_screen(SeveralScreen(list(map(self.store.run, self._to_compare()[:MOST]))))

    def action_turn(self) -> None:
        by = By(self.store.by.name, not self.store.by.largest)
        self._decide(by)
        self.notify(f"The {'greatest' if by.largest else 'least'} {by.name} is best",
                    markup=False)

    def action_value(self) -> None:
        pick(self.app, "The value that decides",
             [(name, "", partial(self._decide, By(name)))
              for name in names(self.store.members)])

    @guarded("matters", exclusive=True)
    async def action_matters(self) -> None:
        self.notify("Optuna is asked which values matter …", markup=False)
        await self.store.ask_what_matters()
        if self.store.search is not None and self.is_attached:
            self.notify(self.store.search.lines()[-1], markup=False)  # below it may be no room
            self.post_message(self.Moved(self))

    def _decide(self, by: By) -> None:
        self.store.decide(by)
        self.post_message(self.Moved(self))

    @guarded("do", exclusive=True)
    async def action_stop(self) -> None:
        if self.store.group is not None and await ask_and_stop(self.app, self.store.group):
            self.post_message(SeveralScreen.Again())

    @guarded("do", exclusive=True)
    async def action_retry(self) -> None:
        from gpu_engine.sweep import group as sweeps

        failed, stopped = self._again()
        group = self.store.group
        plan = group.members[0][0].plan() if group is not None else None
        how = "goes on from its last checkpoint" if plan is not None and plan.spec.task.use \
            else "runs your command again as it is"
        # Those that somebody stopped go on with the failed ones only where there are none of these.
        what = units.counted(failed, "failed run") if failed else \
            f"{units.counted(stopped, 'run')} that {'was' if stopped == 1 else 'were'} stopped" \
            if stopped else ""
        question = Confirm(
            f"Try {what} again", f"Each waits in the queue for another attempt, which {how}.",
            yes="Try again") if what else Confirm(
            "Have the search go on", "It asks for the next values when a place has room.",
            yes="Go on")
        if group is not None and await _ask_and_do(
                self.app, group, ["retry", *(() if failed else ("--stopped",))],
                partial(sweeps.retry, stopped=not failed), "In the queue for another attempt",
                question):
            self.post_message(SeveralScreen.Again())

    def _again(self) -> tuple[int, int]:
        """How many members have failed, and how many somebody has stopped."""
        members = self.store.members
        return sum(one.kind == FAILED for one in members), sum(one.by_hand for one in members)

    @property
    def _search_stopped(self) -> bool:
        group = self.store.group
        return group is not None and bool(group.to_come) and not group.asks


class DifferencesPane(SeveralPane):
    """The same runs, with what they differ in."""

    NAME = TITLE = "differences"
    HELP = """The settings in which chosen runs differ, and after them the commit, versions, devices
and machine, as far as they differ too. Everything that is not listed is the same. Of a sweep they
are the first columns of its table."""

    def table(self) -> Table:
        facts = self.store.facts
        settings = [row for row in compare.setting_rows(facts) if row.name != "name"]  # the first
        others = compare.environment_rows(facts)
        problems = [f"{one.id}: its settings can't be read: {one.problem}"
                    for one in self.store.runs if one.problem is not None]
        self.entitle(f"differences ─ {len(settings) or 'none'} in settings, {len(others)} in the "
                     "environment", clean(" · ".join(problems)))
        return table.of_chosen(facts, [*settings, *others], self.strokes(), right=False)


class SeveralScreen(PaneScreen):
    SCOPE = "several"
    PANES: ClassVar[tuple[type[Pane], ...]] = (CurvesPane, SeveralPane, DifferencesPane)
    AUTO_FOCUS = None
    DEFAULT_CSS = """
    SeveralScreen.-sweep {
        #several { max-height: 60%; }
        #differences { display: none; }
    }
    """

    class Again(Message):
        """Something was done to a sweep's runs."""

    def __init__(self, runs: Sequence[Run] = (), sweep: str = "") -> None:
        """`runs`: at most `store.MOST` are compared. `sweep`: the id of one, in their place."""
        super().__init__(classes="-sweep" if sweep else "")
        self.store = SeveralStore(runs, sweep)
        self._pointed: tuple[str, ...] = ()
        """The ids of the runs under the cursor."""
        self._painted: object = None

    def compose(self) -> ComposeResult:
        yield Curves(self.store)
        yield SeveralPane(self.store)
        yield DifferencesPane(self.store)
        yield KeyBar()

    def on_mount(self) -> None:
        if self.query(KeyBar):  # else the panel closes as it opens this: nothing was mounted
            self.pane(SeveralPane.NAME if self.store.sweep else CurvesPane.NAME).focus()
            self.set_interval(EVERY, self.paint)

    def paint(self) -> None:
        now = self.store.version, self._pointed
        if now != self._painted and self.is_active:
            self._painted = now
            for pane in self.query(SeveralPane):
                pane.repaint()
            self.query_one(Curves).draw(self._on_top())

    def _on_top(self) -> int | None:
        """The number of the run under the cursor, or of the best one of a sweep."""
        here = (i for i, one in enumerate(self.store.runs) if one.run.id in self._pointed)
        return next(here, self.store.best if self.store.sweep else 0)

    def on_several_pane_moved(self, event: SeveralPane.Moved) -> None:
        if event.pane is self.focused:  # the other one follows
            self._pointed = event.pane.ids
            for pane in self.query(SeveralPane):
                pane.cursor = event.pane.cursor
        self.paint()

    def on_screen_resume(self, event: ScreenResume) -> None:
        """It is opened, or a run may have been resumed on its own screen."""
        self.on_several_screen_again()

    def on_several_screen_again(self) -> None:
        self.store.stale = True
        self.run_worker(self.store.follow(), group="store", exclusive=True, exit_on_error=False)

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "pane":
            return "A sweep's runs differ in the first columns of its table"
        return super().why_off(action, parameters)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "pane" and parameters == (DifferencesPane.NAME,) and self.store.sweep:
            return False
        return super().check_action(action, parameters)

    def action_copy(self) -> None:
        store = self.store
        copy(self.app, "\n".join(
            compare.markdown(store.facts) if store.group is None
            else table.markdown(store.points, store.group.keys, store.by)))
