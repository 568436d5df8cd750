"""The run screen: one run's loss, memory, ranks and logs. It only reads what the ranks wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from gpu_engine.common.errors import UserError
from gpu_engine.places.verbs import stop as stop_run
from gpu_engine.runs.folder import Run
from gpu_panel import keys
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.errors import guard
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.painting import put
from gpu_panel.common.panes import Pane, PaneBar, StoreScreen
from gpu_panel.common.picking import pick
from gpu_panel.run import subjects
from gpu_panel.run.banner import Banner, banner
from gpu_panel.run.chart import ChartPane, LossPane, MemoryPane
from gpu_panel.run.headline import figures, headline
from gpu_panel.run.log import LogPane
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.ranks import EIGHT, RanksPane
from gpu_panel.run.store import RunStore

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

PAINTED_EVERY = 1.0
"""Seconds between two paints: of a live run there is always news, and a chart of eight ranks takes
15 kB. While much is read, it is painted as soon as all of it has been."""
BOTH = 20
"""Lines of the screen below the banner from which on a tab has both charts."""
FIRST_LOOK = 0.05
"""Seconds for which the first frame waits for the state and the plan of the run, which decide how
high its panes are: a frame with the wrong heights has to be laid out again."""


class RunScreen(StoreScreen):
    CSS_PATH = Path(__file__).with_name("screen.tcss")  # also for a subclass in another folder
    AUTO_FOCUS = ""  # Textual's would go to the first pane, whichever is in front
    SCOPE = "run"
    CHANGES: ClassVar[frozenset[str]] = frozenset({
        "stop", "resume", "export", "trace", "printed"})
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
        self._rank: int | None = None
        self._painted = self._looked = False
        """Whether it was painted, and that after all that there was had been read."""
        self._stop_asked: int | None = None
        """The attempt that has been asked to stop."""
        self._was_live, self._left = True, False

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="facts", markup=False)
        yield Banner(id="banner", markup=False)
        yield PaneBar(self.tabs(), id="tabs")
        for charts, classes in groupby(self.PANES, lambda pane: issubclass(pane, ChartPane)):
            panes = [pane(id=pane.NAME) for pane in classes]
            yield from [Horizontal(*panes, classes="row")] if charts else panes
        yield KeyBar()

    async def on_mount(self) -> None:
        self.run_worker(self.store.follow(), group="store", exclusive=True, exit_on_error=False)
        with suppress(TimeoutError):
            await self.store.wait_for(lambda store: store.state is not None, FIRST_LOOK)
        if not self.query(PaneBar):  # the panel closes as it opens this: nothing was mounted
            return
        self._arrange()
        self.paint()
        self.run_worker(self._keep_painted(), group="paint", exclusive=True)

    # --- painting -------------------------------------------------------------------------------

    async def _keep_painted(self) -> None:
        while True:
            with suppress(TimeoutError):
                await self.store.wait_for(
                    lambda store, before=self.store.caught_up: store.caught_up and not before,
                    PAINTED_EVERY)
            self.paint()

    def paint(self) -> None:
        """Draw what has changed; ages and clocks change even without news."""
        if not self.app.is_running or (not self.is_current and self._painted):
            return  # as the panel closes, the panes go first
        self._painted = True
        store, now = self.store, self._clock()
        live = store.state is None or store.state.live
        moment = Moment(now, live, self._rank)
        for pane in self._panes():
            pane.paint(store, moment)
        self._share_rows()
        if store.caught_up and not self._looked:
            self._looked = True
            command = store.plan is not None and store.plan.spec.task.command is not None
            if (store.state is not None and store.state.state == "failed") \
                    or ((command or not live) and not len(store.loss.all)):
                self.bring_forward(LogPane.NAME)  # its traceback, or all that there is
        put(self.query_one("#head", Static), headline(store, now, self.size.width), layout=False)
        put(self.query_one("#facts", Static), figures(store, now), layout=False)
        place, (lines, tone) = self.query_one(Banner), banner(store, now)
        place.display = bool(lines) and self.size.height >= 10  # the heading has precedence
        place.styles.max_height = max(self.size.height // 4, 1)
        place.show(lines, tone)
        if (live, bool(store.left)) != (self._was_live, self._left):
            self._was_live, self._left = live, bool(store.left)
            self.refresh_bindings()

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
        self.set_class(self.size.width < self.LEAST[0], "-narrow")
        self.query_one(PaneBar).active = self._front
        self._share_rows()
        self._keep_focus(tabs)

    def _share_rows(self) -> None:
        """Show the panes that have something to say, with eight ranks, or a third, as high as they
        need."""
        tabs, state = self.has_class("-tabs"), self.store.state
        front = self.query_one(f"#{self._front}")
        # Where there is room for one pane with tabs, there is for both charts without the others.
        room = self.size.height - self.query_one(Banner).outer_size.height
        both = not self._whole and room >= BOTH and isinstance(front, ChartPane)
        over = self.store.caught_up and state is not None and not state.live
        for pane in self._panes():
            chart = isinstance(pane, ChartPane)
            folded = chart and over and pane.is_blank and not (tabs and pane is front)
            alone = tabs and not (both and chart)
            pane.set_class(pane is not front if alone else folded, "-behind")
        for row in self.query(".row"):
            row.set_class(all(pane.has_class("-behind") for pane in row.children), "-behind")
        ranks = self.query_one(RanksPane)
        ranks.styles.height = "1fr" if self.has_class("-tabs") else \
            min(ranks.rows_wanted, max(self.size.height // 3, EIGHT))
        # Of a run that failed its traceback says more than its curves.
        self.set_class(state is not None and state.state == "failed", "-failed")

    def action_maximize(self) -> None:
        self._whole = not self._whole
        if self._whole:
            self._front = next((p.NAME for p in self._panes() if p.has_focus_within), self._front)
        self._arrange()
        self.paint()

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

    def action_curve(self) -> None:
        """Choose what the chart with the focus shows; the first chart if none has it."""
        charts = [pane for pane in self._panes() if isinstance(pane, ChartPane)]
        chart = next((c for c in charts if c.has_focus), charts[0])
        self.bring_forward(chart.NAME)
        pick(self.app, f"What the {'first' if chart is charts[0] else 'second'} chart shows",
             [(s.name, f"{s.group} · {s.title(self.store)}", partial(chart.choose, s.key))
              for s in subjects.every(self.store)])

    @work(exit_on_error=False, group="export")
    async def action_export(self) -> None:
        from gpu_panel.exporting import export

        with guard(self.app):
            await export(self.app, [self.run_folder.id])

    def action_printed(self, key: str) -> None:
        """Show what the command of a key prints, run beside the panel."""
        from gpu_panel.commands.own import engine

        engine(self.app, *keys.COMMANDS[key].format(run=self.run_folder).split()[1:])

    def action_about(self) -> None:
        from gpu_panel.run.sheets import AboutRun

        self.app.push_screen(AboutRun(self.store, self._clock))

    def action_trace(self) -> None:
        self.action_printed("run.trace")

    @work(group="stop", exclusive=True, exit_on_error=False)
    async def action_stop(self) -> None:
        from gpu_panel.run.sheets import question

        state, left, run = self.store.state, self.store.left, self.run_folder
        if state is None or not (state.live or left):
            return
        now = self._stop_asked == state.attempt or state.state == "stopping"
        queued = self.store.turn is not None
        if not await self.app.push_screen_wait(question(self.store, now=now)):
            return
        try:
            await asyncio.to_thread(stop_run, run, now=now)
        except (UserError, OSError) as err:
            self.notify(str(err), severity="warning", markup=False)
            return
        if queued:
            await self.store.poll_now()
            self.paint()
        elif not left:
            self._stop_asked = state.attempt
        done = "Ended the remaining processes" if left else "Removed from the queue" if queued \
            else "Ending the ranks" if now else "Asked the ranks to stop"
        same.done(self.app, done, [["stop", run.id, *["--now"] * (now and not left)]])

    @work(group="resume", exclusive=True, exit_on_error=False)
    async def action_resume(self) -> None:
        from gpu_panel.run.resume import ResumeDialog, ResumeOptions

        with guard(self.app):
            options = await in_thread(lambda: ResumeOptions.read(self.run_folder))
            if await self.app.push_screen_wait(ResumeDialog(self.run_folder, options)):
                await self.store.poll_now()
                self.paint()
