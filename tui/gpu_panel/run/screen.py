"""One run: its ranks, its curves, its logs. It only reads what the ranks wrote."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState

from gpu_engine.common.units import GIB
from gpu_engine.runs.folder import Run
from gpu_panel.charts.axes import time_ticks
from gpu_panel.charts.curves import CurveView
from gpu_panel.common import units
from gpu_panel.common.pane_bar import PaneBar
from gpu_panel.run import curves as run_curves
from gpu_panel.run import words as run_words
from gpu_panel.run.ending import EndActions
from gpu_panel.run.log import FindInput, LogActions
from gpu_panel.run.log_sources import LogSources
from gpu_panel.run.log_view import LogView
from gpu_panel.run.rank_table import RankTable
from gpu_panel.run.store import RunStore

PANES = ("loss", "memory", "ranks", "log")
WIDE = (110, 30)
"""From this many columns and lines on all panes stand side by side; below, behind tabs."""


class RunScreen(LogActions, EndActions, Screen[None]):
    """Everything about one run, live or long over."""

    CSS_PATH = "run.tcss"
    AUTO_FOCUS = None
    HELP = "One run. Panes are reached by 1 to 4 or tab; the keys below work in all of them."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", id="run-back", tooltip="Back; the run goes on"),
        Binding("s", "stop", "stop", id="run-stop",
                tooltip="Ask the ranks to finish their step and save; again: end them now"),
        Binding("u", "resume", "resume", id="run-resume",
                tooltip="Another attempt of a run that has ended, from its last checkpoint"),
        Binding("i", "about", "about", id="run-about",
                tooltip="Attempts and why they ended, warnings, what runs, where"),
        Binding("r", "next_rank", "rank", id="run-rank", tooltip="The next rank's log"),
        Binding("slash", "find", "find", id="run-find", key_display="/",
                tooltip="Find in the log; n and N for the next and the one before"),
        Binding("l", "log_scale", "Log scale", show=False, id="run-log-scale",
                tooltip="Loss on a logarithmic scale, or linear"),
        Binding("m", "smooth", "Smooth", show=False, id="run-smooth",
                tooltip="Smooth the loss: not, 0.6, 0.9"),
        Binding("y", "copy", "Copy", show=False, id="run-copy", tooltip="Copy the log's line"),
        Binding("o", "optimizer", "Optimizer", show=False, id="run-optimizer",
                tooltip="Whose loss is drawn, in a script with several optimizers"),
        Binding("d", "stacks", "Stacks", show=False, id="run-stacks",
                tooltip="Where the chosen rank is now: every thread's stack, into its log"),
        Binding("n", "again(1)", "Next place", show=False, id="run-find-next"),
        Binding("N", "again(-1)", "Place before", show=False, id="run-find-previous"),
        Binding("right_square_bracket", "source(1)", "Next log", show=False, id="run-log-next",
                tooltip="The next log: ranks, traceback, supervisor"),
        Binding("left_square_bracket", "source(-1)", "Log before", show=False,
                id="run-log-previous", tooltip="The log before"),
        *(Binding(str(i), f"pane('{name}')", f"Pane {name}", show=False, id=f"run-pane-{name}")
          for i, name in enumerate(PANES, 1)),
    ]

    def __init__(self, run: Run, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.run_folder = run
        self.store = RunStore(run)
        self.clock = clock
        self.sources = LogSources(run)
        self.pane = "loss"
        self._painted = -1
        self._told: tuple[object, ...] = ()
        self._said: dict[str, Content] = {}
        self._failure_shown = False
        self._optimizer = 0
        self._attempt = 1
        self._was_live, self._left = True, False

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="facts", markup=False)
        yield Static(id="banner", markup=False)
        yield PaneBar([(name, name) for name in PANES], id="tabs")
        with Horizontal(id="charts"):
            yield CurveView(id="loss", empty="no step yet")
            yield CurveView(id="memory", y_text=lambda v: units.gib(v) + " GiB",
                            x_text=units.clock, x_ticks=time_ticks, x_name="at",
                            y_unit=GIB, zero=True, empty="no figure yet")
        yield RankTable(id="ranks", clock=self.clock)
        with Vertical(id="log-pane"):
            yield LogView(id="log")
            yield FindInput(id="find", placeholder="find", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._arrange()
        self.run_worker(self.store.follow(), group="store", exclusive=True, exit_on_error=False)
        self.set_interval(0.5, self.paint)
        self.call_after_refresh(self.paint)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "store" and event.state == WorkerState.ERROR:
            self.notify(f"reading this run has stopped: {event.worker.error}",
                        severity="error", markup=False, timeout=30)

    # --- painting -------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw what has changed. Ages and clocks change by themselves."""
        if not self.is_current and self._painted >= 0:
            return
        store, now = self.store, self.clock()
        self._say("#head", run_words.headline(store, now, self.size.width))
        self._say("#facts", run_words.facts(store, now))
        self._paint_banner(now)
        live = store.state is None or store.state.live
        attempt = store.state.attempt if store.state is not None else 1
        if attempt != self._attempt:  # whatever was asked or shown was about the one before
            self._attempt, self._asked_to_stop, self._failure_shown = attempt, False, False
            self.sources.forget_failure()
        table = self.query_one(RankTable)
        table.show(store.ranks, store.plan, live=live)
        if not self.has_class("-tabs"):
            table.styles.height = min(table.lines + 3, max(self.size.height // 3, 6))
        else:
            table.styles.height = "1fr"
        self._paint_logs()
        if (live, bool(store.left)) != (self._was_live, self._left):
            self._was_live, self._left = live, bool(store.left)
            self.refresh_bindings()
        if store.version != self._painted:
            self._painted = store.version
            self.paint_curves()

    def _say(self, where: str, content: Content) -> None:
        """Put it into a line of fixed height, if it is new there."""
        if not content.is_same(self._said.get(where, Content())):
            self._said[where] = content
            self.query_one(where, Static).update(content, layout=False)

    def _paint_banner(self, now: float) -> None:
        lines, tone = run_words.banner(self.store, now)
        if (told := (*lines, tone)) == self._told:
            return
        self._told = told
        widget = self.query_one("#banner", Static)
        widget.display = bool(lines) and self.size.height >= 10  # which run it is comes first
        widget.styles.max_height = max(self.size.height // 4, 1)
        for name in ("error", "warning", "success", "plain"):
            widget.set_class(name == tone, f"-{name}")
        widget.update(Content("\n".join(lines)))

    def paint_curves(self) -> None:
        chosen = self.sources.rank
        loss, memory = self.query_one("#loss", CurveView), self.query_one("#memory", CurveView)
        which = self._optimizer
        loss.show(run_curves.loss_lines(self.store, which),
                  run_curves.loss_series(self.store, which).all, chosen,
                  marks=run_curves.loss_marks(self.store, which))
        loss.entitle(run_curves.loss_title(self.store, which))
        memory.show(run_curves.memory_lines(self.store, chosen), None, chosen)
        memory.entitle(run_curves.memory_title(self.store))

    def _paint_logs(self) -> None:
        store, view = self.store, self.query_one(LogView)
        self.sources.learn(store)
        if self.sources.failed is not None and not self._failure_shown:
            self._failure_shown = True  # the cause comes to the front, once
            self.sources.show_failure()
        if view.lines is not self.sources.current:
            self.show_source()
        else:
            view.refresh_lines()

    # --- arranging ------------------------------------------------------------------------------

    def on_resize(self, event: Resize) -> None:
        self._arrange()

    def _arrange(self) -> None:
        tabs = self.size.width < WIDE[0] or self.size.height < WIDE[1]
        self.set_class(tabs, "-tabs")
        for name in PANES:
            self.set_class(tabs and name == self.pane, f"-on-{name}")
        self.query_one(PaneBar).active = self.pane
        if self.focused is None or not self.focused.is_on_screen or tabs:
            self.call_after_refresh(self._focus_pane)

    def _focus_pane(self) -> None:
        if self.query_one("#find").has_focus:
            return
        self.query_one(f"#{self.pane}").focus(scroll_visible=False)

    def on_pane_bar_picked(self, event: PaneBar.Picked) -> None:
        self.action_pane(event.pane)

    def action_pane(self, name: str) -> None:
        self.pane = name
        self._arrange()
        self._focus_pane()

    # --- keys -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is over can't be stopped, what runs can't be resumed: the footer greys the key."""
        over = action == "stop" and not self._was_live and not self._left
        return None if over or (action == "resume" and self._was_live) else True

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.dismiss(None)

    def action_log_scale(self) -> None:
        self.query_one("#loss", CurveView).toggle_log()

    def action_smooth(self) -> None:
        self.query_one("#loss", CurveView).cycle_smoothing()

    def action_optimizer(self) -> None:
        """The next optimizer's loss; a script of one has nothing to switch."""
        there = [0, *self.store.others]
        if len(there) == 1:
            self.notify("this run has one optimizer", timeout=2)
            return
        at = there.index(self._optimizer) if self._optimizer in there else 0
        self._optimizer = there[(at + 1) % len(there)]
        self.paint_curves()
