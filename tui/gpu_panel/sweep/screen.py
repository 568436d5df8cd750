"""The screen of one sweep: the curves of its members, what each value led to, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import ScreenResume
from textual.message import Message

from gpu_engine.common import units
from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Run
from gpu_engine.sweep.group import Group
from gpu_engine.sweep.table import FAILED, One, Point, names, points, summary
from gpu_panel import keys
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.errors import guard
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.picking import pick
from gpu_panel.common.rows import Line, Row, Rows, text_row
from gpu_panel.compare.store import CompareStore
from gpu_panel.sweep import lines
from gpu_panel.sweep.curves import SweepCurves
from gpu_panel.sweep.lines import Gathered, SweepStore

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

EVERY = 2.0
"""Seconds between two polls while runs of it may still change."""
OFTEN = 0.5
"""Seconds between two paints of the curves."""


class SweepPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    NAME = "sweep"
    TITLE = "Sweep"
    CALLED = "the sweep"
    TAB = False
    KEYS = keys.of("sweep")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"stop", "retry"})
    HELP = """A line for each combination of values, the best first: the best and the last value of
its completed runs (mean ± sample standard deviation, and their number); ~ marks combinations
without a completed run. Enter shows the runs of a line, and opens one. b chooses the value to rank
by, O whether the least or the greatest is best. c compares the runs of the line, or the best ones
if it has only one. s stops the whole sweep, u retries failed runs."""

    class Changed(Message):
        """The table is not as it was."""

    def __init__(self, store: SweepStore | None = None, *, id: str = NAME) -> None:
        """`store`: that of the sweep, if it is known already."""
        super().__init__(id=id)
        self._reading = False
        self.anew(store)

    def anew(self, store: SweepStore | None) -> None:
        self.store = store
        self.group: Group | None = None
        self.members: list[One] | None = None
        """The members as they were read last; None before the first time."""
        self.by = By()
        """The value that decides."""
        self._points: list[Point] = []
        self._unfolded: set[str] = set()
        if store is not None and store.last is not None:
            self._show(store.last)

    # --- reading -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read what is new, unless that is still being done or nothing can be."""
        done = self.members is not None and not lines.progress(self.members)
        if not self._reading and not done:
            self.poll_now()

    def poll_now(self) -> None:
        if self.store is not None:
            self._reading = True
            self._read(self.store)

    @work(exit_on_error=False, group="sweep", exclusive=True)
    async def _read(self, store: SweepStore) -> None:
        try:
            with guard(self.app):
                found = await in_thread(store.gather)
                if self.is_mounted and store is self.store:
                    self._show(found)
        finally:
            self._reading = False

    def _show(self, found: Gathered) -> None:
        self.by = found.by if self.members is None else self.by
        self.group, self.members = found.group, found.members
        self._arrange()

    def _arrange(self) -> None:
        members = self.members or []
        self._points = points(members, self.by)
        if self.group is not None:
            said = summary(self.group.of, members)
            self.entitle(f"Sweep {self.group.id} {self.group.name} ─ {said}",
                         "b value · O least/greatest · y copy" if members else "")
        self.repaint()
        self.refresh_bindings()
        self.post_message(self.Changed())

    @property
    def points(self) -> list[Point]:
        """The lines of the table, the best first."""
        return self._points

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.members is None or self.group is None:
            return None, [text_row("Reading the sweep …")]
        if not self.members:
            return None, [text_row("None of its runs exists any more")]
        head, rows = lines.build(self._points, self.group.keys, self.by, width,
                                 unfolded=self._unfolded)
        return head, [*rows, *lines.below(self._points, self.by, self.group.of, width)]

    # --- what the keys do ----------------------------------------------------------------------

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        return {"retry": "No run of this sweep has failed", "stop": "All runs of this sweep have "
                "ended", "compare": "There is only one run to compare"}.get(action, "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        members = self.members or []
        if action == "retry":
            return any(one.kind == FAILED for one in members)
        if action == "stop":
            return lines.progress(members)
        if action == "compare":
            return len(self._chosen()) > 1
        if action in ("open", "value", "turn", "copy"):
            return bool(members)
        return True

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self.refresh_bindings()

    def _point_at_cursor(self) -> Point | None:
        key = self.key_at_cursor
        return next((p for p in self._points
                     if key == lines.key_of(p) or key in [m.id for m in p.members]), None)

    def _at_cursor(self) -> list[One]:
        point, key = self._point_at_cursor(), self.key_at_cursor
        if point is None:
            return []
        return [m for m in point.members if m.id == key] or list(point.members)

    def _chosen(self) -> list[One]:
        """The runs of the line under the cursor; if it has only one, those of all lines, the best
        first."""
        line = self._at_cursor()
        return line if len(line) > 1 else [m for p in self._points for m in p.members]

    def _run(self, ident: str) -> Run:
        assert self.group is not None
        return next(run for run, _ in self.group.members if run.id == ident)

    def placeholders(self) -> Values:
        from gpu_panel.commands.own import of_run

        at = self._at_cursor()
        return of_run(self._run(at[0].id)) if len(at) == 1 else {}

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        key = self.key_at_cursor
        if key is None:
            return
        if key.startswith(lines.POINT):
            self._unfolded ^= {key}
            self.repaint()
            return
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(self._run(key)))

    def action_compare(self) -> None:
        from gpu_panel.compare.screen import CompareScreen
        from gpu_panel.compare.store import MOST

        self.app.push_screen(CompareScreen([self._run(one.id) for one in self._chosen()[:MOST]]))

    def action_turn(self) -> None:
        self._decide(By(self.by.name, not self.by.largest))
        self.notify(f"The {'greatest' if self.by.largest else 'least'} {self.by.name} is best",
                    markup=False)

    def action_copy(self) -> None:
        if self.group is not None:
            copy(self.app, "\n".join(lines.markdown(self._points, self.group.keys, self.by)))

    def action_value(self) -> None:
        members = self.members or []
        pick(self.app, "The value that decides",
             [(name, "", partial(self._decide, By(name))) for name in names(members)])

    def _decide(self, by: By) -> None:
        self.by = by
        self._arrange()

    @work(exit_on_error=False, group="do", exclusive=True)
    async def action_stop(self) -> None:
        with guard(self.app):
            if (group := self.group) is None:
                return
            from gpu_engine.plan.own_command import on_stop
            from gpu_engine.sweep import group as sweeps

            plan = group.members[0][0].plan()
            if not await self.app.push_screen_wait(Confirm(
                    f"Stop sweep {group.id}", "The runs that wait leave the queue. Of each that "
                    f"runs, {on_stop(plan and plan.spec)}.", yes="Stop it", no="Keep running")):
                return

            done = await in_thread(lambda: sweeps.stop(group))
            self.poll_now()
            same.done(self.app, f"Asked to stop: {units.counted(len(done.runs), 'run')}",
                      [["sweep", "stop", group.id]], trouble=done.trouble)

    @work(exit_on_error=False, group="do", exclusive=True)
    async def action_retry(self) -> None:
        with guard(self.app):
            if (group := self.group) is None:
                return
            many = sum(one.kind == FAILED for one in self.members or ())
            if not await self.app.push_screen_wait(Confirm(
                    f"Try {units.counted(many, 'failed run')} again", "Each waits in the queue for "
                    "another attempt, which goes on from its last checkpoint.", yes="Try again")):
                return
            from gpu_engine.sweep import group as sweeps

            done = await in_thread(lambda: sweeps.retry(group))
            self.poll_now()
            same.done(self.app, "In the queue for another attempt: "
                      + units.counted(len(done.runs), "run"),
                      [["sweep", "retry", group.id]], trouble=done.trouble)


# --- the screen -----------------------------------------------------------------------------------

class SweepScreen(PaneScreen):
    SCOPE = "sweep-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (SweepPane,)
    AUTO_FOCUS = f"#{SweepPane.NAME}"
    DEFAULT_CSS = "SweepScreen { SweepPane { height: auto; max-height: 60%; min-height: 4; } }"

    def __init__(self, sweep: str, store: SweepStore | None = None) -> None:
        """`sweep`: its id. `store`: what has been read of it already."""
        super().__init__()
        self.table = SweepPane(store or SweepStore(sweep))
        self.curves: CompareStore | None = None
        """What is read of the members' curves, once they are known."""

    def compose(self) -> ComposeResult:
        yield SweepCurves()
        yield self.table
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._poll)
        self.table.poll_now()

    def on_sweep_pane_changed(self) -> None:
        self.table.styles.height = self.table.rows_wanted
        if self.curves is None and self.table.group is not None and self.table.members:
            self.curves = CompareStore([run for run, _ in self.table.group.members])
            self.run_worker(self.curves.follow(), group="store", exit_on_error=False)
            self.set_interval(OFTEN, self._draw)
        self._draw()

    def _draw(self) -> None:
        if self.curves is not None and self.table.group is not None and self.is_active:
            self.query_one(SweepCurves).show(self.curves, self.table.points,
                                             self.table.group.keys, self.table.by)

    def on_screen_resume(self, event: ScreenResume) -> None:
        """A run may have been resumed on its own screen."""
        if self.table.members is not None:
            self.table.poll_now()

    def _poll(self) -> None:
        if self.is_active:
            self.table.poll()
