"""The run screen: one run's loss, memory, ranks and logs. It only reads what the ranks wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from gpu_engine.common.errors import UserError
from gpu_engine.launching.lookup import stop as stop_run
from gpu_engine.runs.folder import Run
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.errors import guard
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.painting import put
from gpu_panel.common.pane_bar import PaneBar
from gpu_panel.common.panes import Pane, StoreScreen
from gpu_panel.common.rows import fit
from gpu_panel.run import subjects
from gpu_panel.run.banner import Banner, banner
from gpu_panel.run.chart import ChartPane, LossPane, MemoryPane, keep_choice, kept_choices
from gpu_panel.run.headline import figures, headline
from gpu_panel.run.log.pane import LogPane
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.ranks import RanksPane
from gpu_panel.run.store import RunStore

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

PAINT_APART, PAINT_AGAIN = 0.9, 1.0
"""Seconds: at least so long between two paints, and at most. Of a live run there is always news,
and a chart of eight ranks takes 15 kB."""
FIRST_LOOK = 0.05
"""Seconds for which the first frame waits for the state and the plan of the run, which decide how
high its panes are: a frame with the wrong heights has to be laid out again."""


class RunScreen(StoreScreen):
    CSS_PATH = Path(__file__).with_name("screen.tcss")  # also for a subclass in another folder
    SCOPE = "run"
    CHANGES: ClassVar[frozenset[str]] = frozenset({
        "stop", "resume", "export", "trace"})
    PANES: ClassVar[tuple[type[Pane], ...]] = (LossPane, MemoryPane, RanksPane, LogPane)

    def __init__(self, run: Run, *, store: RunStore | None = None,
                 clock: Callable[[], float] = time.time,
                 again: Callable[[], object] | None = None) -> None:
        """`store`: what has been read of the run already. `clock`: unix seconds. `again`: called
        when the person wants the run's settings in the form, after this screen has closed; None:
        there is no form."""
        super().__init__()
        self.run_folder = run
        self.store = store or RunStore(run)
        self._clock, self._again = clock, again
        self._whole = False
        """Whether the person wants that pane alone."""
        self._asked: set[str] = set()
        """Charts that the person has asked for, which are shown even without figures."""
        self._bare: frozenset[str] = frozenset()
        """Charts that are not shown, as the script records no figures for them."""
        self._rank: int | None = None
        self._painted = False
        self._attempt = 1
        self._asked_to_stop = False
        self._was_live, self._left = True, False

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="facts", markup=False)
        yield Banner(id="banner", markup=False)
        yield PaneBar(self.tabs(), id="tabs")
        for row in _rows(self.PANES):
            panes = [pane(id=pane.NAME) for pane in row]
            yield Horizontal(*panes, classes="row") if len(panes) > 1 else panes[0]
        yield KeyBar(roomy=True)

    async def on_mount(self) -> None:
        self.run_worker(self.store.follow(), group="store", exclusive=True, exit_on_error=False)
        with suppress(TimeoutError):
            await self.store.wait_for(lambda store: store.state is not None, FIRST_LOOK)
        if not self.query(PaneBar):  # the panel closes as it opens this: nothing was mounted
            return
        self._arrange()
        self.paint()
        self._choose_as_before()
        self.run_worker(self._keep_painted(), group="paint", exclusive=True)

    # --- painting -------------------------------------------------------------------------------

    async def _keep_painted(self) -> None:
        """Paint news as soon as it is read, but not too often; clocks and logs now and then."""
        shown = -1
        while True:
            with suppress(TimeoutError):
                await self.store.wait_for(lambda store, shown=shown: store.version != shown,
                                          PAINT_AGAIN - PAINT_APART)
            shown, whole = self.store.version, self.store.caught_up
            self.paint()
            if whole:
                await asyncio.sleep(PAINT_APART)
                continue
            with suppress(TimeoutError):  # once it has been read as a whole, it is painted at once
                await self.store.wait_for(lambda store: store.caught_up, PAINT_APART)

    def paint(self) -> None:
        """Draw what has changed; ages and clocks change even without news."""
        if not self.app.is_running or (not self.is_current and self._painted):
            return  # as the panel closes, the panes go first
        self._painted = True
        store, now = self.store, self._clock()
        moment = Moment(now, store.state is None or store.state.live, self._rank)
        for pane in self._panes():
            pane.paint(store, moment)
        self._name_tabs()
        self._share_rows()
        bare = self._without_figures()
        if bare != self._bare:
            self._bare = bare
            self._arrange()
        self._paint_texts(now, moment)

    def _paint_texts(self, now: float, moment: Moment) -> None:
        store = self.store
        put(self.query_one("#head", Static), headline(store, now, self.size.width), layout=False)
        put(self.query_one("#facts", Static), figures(store, now), layout=False)
        place, (lines, tone) = self.query_one(Banner), banner(store, now)
        place.display = bool(lines) and self.size.height >= 10  # the heading has precedence
        place.styles.max_height = max(self.size.height // 4, 1)
        place.show(lines, tone)
        attempt = store.state.attempt if store.state is not None else 1
        if attempt != self._attempt:  # the request to stop was for the earlier attempt
            self._attempt, self._asked_to_stop = attempt, False
        if (moment.live, bool(store.left)) != (self._was_live, self._left):
            self._was_live, self._left = moment.live, bool(store.left)
            self.refresh_bindings()

    def _without_figures(self) -> frozenset[str]:
        """The charts to which an own command gives nothing, so that its log gets their room."""
        plan = self.store.plan
        if plan is None or plan.spec.task.command is None or not self.store.caught_up:
            return frozenset()
        return frozenset(pane.NAME for pane in self._panes()
                         if isinstance(pane, ChartPane) and pane.is_empty) - self._asked

    def _panes(self) -> Iterator[RunPane]:
        for pane in self.PANES:
            yield self.query_one(f"#{pane.NAME}", RunPane)

    def on_run_pane_rank_chosen(self, event: RunPane.RankChosen) -> None:
        self._rank = event.pass_on(self._panes())
        self.call_after_refresh(self.paint)

    # --- arranging ------------------------------------------------------------------------------

    def _arrange(self) -> None:
        tabs = self._whole or self.is_small
        self.set_class(tabs, "-tabs")
        self.set_class(self._whole, "-whole")
        front = self._shown_front
        for pane in self._panes():
            pane.set_class(front != pane.NAME if tabs else pane.NAME in self._bare, "-behind")
        for row in self.query(".row"):
            row.set_class(all(pane.has_class("-behind") for pane in row.children), "-behind")
        self.query_one(PaneBar).active = front
        self._share_rows()
        self._keep_focus(tabs)

    def _share_rows(self) -> None:
        """Give the ranks what they need of a third, and the charts what the log does not need."""
        ranks, log = self.query_one(RanksPane), self.query_one(LogPane)
        ranks.styles.height = "1fr" if self.has_class("-tabs") else \
            min(ranks.lines + 3, max(self.size.height // 3, 6))
        charts = [row for row in self.query(".row") if not row.has_class("-behind")]
        log.styles.max_height = log.rows_wanted if charts and not self.has_class("-tabs") else None

    @property
    def _shown_front(self) -> str:
        return LogPane.NAME if self._front in self._bare else self._front

    def action_maximize(self) -> None:
        self._whole = not self._whole
        if self._whole:
            self._front = next((p.NAME for p in self._panes() if p.has_focus_within),
                               self._shown_front)
        self._arrange()
        self.paint()

    def bring_forward(self, name: str) -> None:
        if name in self._bare:
            self._asked.add(name)
            self._bare -= {name}
        super().bring_forward(name)

    @property
    def run_at_hand(self) -> str:
        return self.run_folder.id

    def placeholders(self) -> Values:
        from gpu_panel.commands.own import of_run

        return of_run(self.run_folder, self._rank or 0)

    # --- the run itself -------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        over = not self._was_live and (
            action == "trace" or (action == "stop" and not self._left))
        if over or (action == "resume" and self._was_live):
            return False
        if action == "again" and self._again is None:
            return None
        return super().check_action(action, parameters)

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        state = self.store.state.state if self.store.state is not None else "not read yet"
        return {"stop": f"This run can't be stopped: it is {state}",
                "resume": f"This run can't be resumed: it is {state}; s stops it",
                "trace": f"This run makes no steps to trace: it is {state}",
                "again": "There is no form here to load its settings into"}.get(
                    action, super().why_off(action, parameters))

    def action_back(self) -> None:
        """Back to all panes if one is shown alone, else to the launch screen; the run goes on."""
        if self._whole:
            self.action_maximize()
        elif len(self.app.screen_stack) > 1:
            self.dismiss(None)

    def action_again(self) -> None:
        if self._again is not None and len(self.app.screen_stack) > 1:
            self.dismiss(None)
            self._again()

    def action_copy_command(self) -> None:
        plan = self.store.plan
        if plan is None:
            self.notify("Its plan can't be read yet, so there is no command", severity="warning")
            return
        copy(self.app, "\n".join(plan.lines))

    @work(group="curve", exclusive=True, exit_on_error=False)
    async def action_curve(self) -> None:
        """Choose what the chart with the focus shows; the first chart if none has it."""
        from gpu_panel.run.picker import CurvePicker

        charts = [pane for pane in self._panes() if isinstance(pane, ChartPane)]
        pane = next((c for c in charts if c.has_focus), charts[0])
        self.bring_forward(pane.NAME)
        now = pane.subject.key if pane.subject is not None else pane.chosen
        first = "first" if pane is charts[0] else "second"
        found = await self.app.push_screen_wait(CurvePicker(self._curves, now, first))
        if found is not None:
            pane.choose(found)
            with guard(self.app):
                await in_thread(lambda: keep_choice(pane.NAME, found))

    @work(group="choices", exit_on_error=False)
    async def _choose_as_before(self) -> None:
        """Show in each chart what was chosen there last, in this run or another."""
        kept = await in_thread(kept_choices)
        for pane in self._panes():
            if isinstance(pane, ChartPane) and pane.NAME in kept and self.is_mounted:
                pane.choose(kept[pane.NAME])

    def _name_tabs(self) -> None:
        bar = self.query_one(PaneBar)
        for pane in self._panes():
            if isinstance(pane, ChartPane) and pane.subject is not None:
                own = pane.subject.key == pane.FIRST
                bar.rename(pane.NAME, pane.TITLE if own else fit(pane.subject.name, 20).rstrip())

    @work(exit_on_error=False, group="export")
    async def action_export(self) -> None:
        from gpu_panel.export.exporting import export

        with guard(self.app):
            await export(self.app, [self.run_folder.id])

    def _curves(self) -> list[tuple[str, str, str, str]]:
        return [(s.key, s.name, s.group, s.title(self.store)) for s in subjects.every(self.store)]

    def action_about(self) -> None:
        from gpu_panel.run.sheets import AboutRun

        self.app.push_screen(AboutRun(self.store, self._clock))

    @work(group="trace", exclusive=True, exit_on_error=False)
    async def action_trace(self) -> None:
        from gpu_panel.run.sheets import ask_for_traces

        same.done(self.app, "Tracing the next 3 steps of each rank",
                  [["trace", self.run_folder.id]])
        with guard(self.app):
            sheet = await in_thread(lambda: ask_for_traces(self.run_folder))
            self.app.push_screen(sheet)

    @work(group="stop", exclusive=True, exit_on_error=False)
    async def action_stop(self) -> None:
        from gpu_panel.run.sheets import question

        state, left, run = self.store.state, self.store.left, self.run_folder
        if state is None or not (state.live or left):
            return
        now = self._asked_to_stop or state.state == "stopping"
        queued = self.store.turn is not None
        if not await self.app.push_screen_wait(question(self.store, now=now)):
            return
        try:
            await asyncio.to_thread(stop_run, run, now=now)
        except (UserError, OSError) as err:
            self.notify(str(err), severity="warning", markup=False)
            return
        if left:
            same.done(self.app, "Ended the remaining processes", [["stop", run.id]])
            return
        if queued:
            same.done(self.app, "Removed from the queue", [["stop", run.id]])
            await self.store.poll_now()
            self.paint()
            return
        self._asked_to_stop = True
        same.done(self.app, "Ending the ranks" if now else "Asked the ranks to stop",
                  [["stop", run.id, *(["--now"] if now else [])]])

    @work(group="resume", exclusive=True, exit_on_error=False)
    async def action_resume(self) -> None:
        from gpu_panel.run.resume import ResumeDialog, ResumeOptions

        with guard(self.app):
            options = await in_thread(lambda: ResumeOptions.read(self.run_folder))
            if await self.app.push_screen_wait(ResumeDialog(self.run_folder, options)):
                await self.store.poll_now()
                self.paint()


def _rows(panes: tuple[type[Pane], ...]) -> list[list[type[Pane]]]:
    """The panes in rows, for a screen with room for all of them."""
    rows: list[list[type[Pane]]] = []
    for pane in panes:
        if rows and issubclass(pane, RunPane) and pane.BESIDE:
            rows[-1].append(pane)
        else:
            rows.append([pane])
    return rows
