"""The runs pane: live runs with their figures, earlier ones with how they ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message

from gpu_engine.runs.folder import Run
from gpu_engine.slurm import watch
from gpu_panel import keys
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.errors import guard
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.runs import lines
from gpu_panel.launch.runs.feed import RunLine, RunsFeed
from gpu_panel.launch.runs.lines import RunColumns
from gpu_panel.launch.runs.remove import ask_and_prune, ask_and_remove
from gpu_panel.run.stop_dialog import ask_to_cancel


class RunsPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """One line a run, newest first, live ones on top."""

    NAME = "runs"
    TITLE = "Runs"
    CALLED = "the runs"
    KEYS = keys.of("runs")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """Runs go on when the panel closes; this list finds them again. Enter watches a run,
live or finished. s asks its ranks to finish their step, save and end; u starts another attempt of
a run that has ended; e loads a run's settings into the form, to change some of them and run it
again. x deletes the folder of a finished run with its checkpoints, X those of all
but the newest runs."""

    @dataclass
    class Read(Message):
        """The runs on disk have been read."""

        runs: tuple[RunLine, ...]

    @dataclass
    class Again(Message):
        """The person wants this run's settings in the form."""

        run: Run

    def __init__(self) -> None:
        super().__init__(id=self.NAME)
        self.lines: tuple[RunLine, ...] | None = None
        """The runs as they were read last; None before the first time."""
        self._feed = RunsFeed()
        self._reading = self._asking = False
        self._skipped = False
        self._unread = 0
        self._columns: RunColumns | None = None
        self._rows_of: dict[str, tuple[RunLine, str, Row]] = {}
        """Run id → the row shown last, and what it was made of."""
        self._footer_live: bool | None = None
        """Whether the footer shows the keys for a live run; None if for no run."""
        self.entitle("Runs")

    # --- reading -------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(watch.EVERY, self._ask_slurm)

    def look(self) -> None:
        """Read what is new on disk, unless that is still being done. If no run is live, do so at
        every second call only."""
        self._skipped = self.lines is not None and not self.live and not self._skipped
        if not self._reading and not self._skipped:
            self._reading = True
            self._read()

    @work(exit_on_error=False, group="slurm")
    async def _ask_slurm(self) -> None:
        """Have the run folders say what Slurm says, without waiting for it elsewhere. Also while
        another screen is shown, which reads those folders."""
        if not self._asking:
            self._asking = True
            try:
                with guard(self.app):
                    await in_thread(watch.refresh, name="panel-slurm")
            finally:
                self._asking = False

    def look_at_once(self) -> None:
        """Read what is new now, as something is known to have changed."""
        self._skipped = True
        self.look()

    @work(exit_on_error=False, group="runs")
    async def _read(self) -> None:
        try:
            with guard(self.app):
                found, unread = await in_thread(self._feed.refresh, name="panel-runs")
                if self.is_mounted:
                    self.show(found, unread)
        finally:
            self._reading = False

    def show(self, found: Sequence[RunLine], unread: int = 0) -> None:
        """Show these runs. `unread`: the number of older ones that are not read yet."""
        self.lines, self._unread = tuple(found), unread
        earlier = len(found) - self.live + unread
        counts = ([f"{self.live} running"] if self.live else [])
        counts += [f"{earlier} earlier"] if earlier else []
        self.entitle("Runs" + (f" ─ {' · '.join(counts)}" if counts else ""),
                     "e again" if found else "")
        self.repaint()
        self._refresh_footer()
        self.post_message(self.Read(self.lines))

    @property
    def live(self) -> int:
        """How many runs are live."""
        return sum(line.live for line in self.lines or ())

    # --- painting ------------------------------------------------------------------------------

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.lines is None:
            return None, [lines.text_row("Looking for runs …")]
        if not self.lines:
            return None, [lines.text_row("No runs yet. ctrl+l launches what the form says.")]
        if (columns := lines.columns(self.lines, width)) != self._columns:
            self._columns, self._rows_of = columns, {}
        now = time.time()
        rows = [self._row(line, columns, now) for line in self.lines]
        self._rows_of = {row.key: kept for row in rows if (kept := self._rows_of.get(row.key))}
        if self._unread:
            rows.append(lines.text_row(f"reading {self._unread:,} older runs …"))
        return None, rows

    def _row(self, line: RunLine, columns: RunColumns, now: float) -> Row:
        """The row of a run. It is made again only if something in it has changed, which is rare
        among a thousand runs."""
        ago = units.ago(now - line.ended) if line.ended and not line.live else ""
        kept = self._rows_of.get(line.id)
        if kept is not None and kept[0] is line and kept[1] == ago:
            return kept[2]
        row = Row(line.id, (lines.run_line(line, columns),))
        self._rows_of[line.id] = (line, ago, row)
        return row

    # --- what can be done with the run under the cursor ----------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self._refresh_footer()

    def _refresh_footer(self) -> None:
        """Update the footer if the run under the cursor allows other actions than before."""
        line = self.line_at_cursor
        live = line.live if line is not None else None
        if live is not self._footer_live:
            self._footer_live = live
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow stop for a live run and resume for one that has ended, so that the footer shows
        only one of them."""
        line = self.line_at_cursor
        if line is not None and line.state == "unreadable" \
                and action in ("resume", "remove", "again"):
            return None
        if action == "resume":
            return line is not None and not line.live
        if action == "stop" and line is not None:
            return line.live
        if action in ("stop", "open", "remove", "again"):
            return None if line is None or (action == "remove" and line.live) else True
        return True

    @property
    def line_at_cursor(self) -> RunLine | None:
        """The run under the cursor; None if there is none."""
        key = self.key_at_cursor
        return next((line for line in self.lines or () if line.id == key), None)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        if (line := self.line_at_cursor) is not None:
            self.open(line.run)

    def open(self, run: Run) -> None:
        """Open the run screen for a run."""
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(run, again=lambda: self.post_message(self.Again(run))))

    def action_again(self) -> None:
        if (line := self.line_at_cursor) is not None:
            self.post_message(self.Again(line.run))

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_stop(self) -> None:
        with guard(self.app):
            if (line := self.line_at_cursor) is not None:
                await self._stop(line, f"Stop run {line.id}")

    @work(exit_on_error=False, group="run", exclusive=True)
    async def stop(self, line: RunLine, title: str) -> None:
        """Ask the person in a dialog with this title, then stop the run."""
        with guard(self.app):
            await self._stop(line, title)

    async def _stop(self, line: RunLine, title: str) -> None:
        if not line.live:
            self.notify(f"Run {line.id} has already ended: {line.state}", markup=False)
            return
        waits = line.state == "queued" and line.job
        if await self.app.push_screen_wait(ask_to_cancel(line.id) if waits else Confirm(
                title, f"{line.name}: its ranks finish their step, save a "
                "checkpoint and end.", yes="Stop it", no="Keep running")):
            from gpu_engine.launch.found import stop as stop_run

            await in_thread(lambda: stop_run(line.run), name="panel-stop")
            self.notify(f"Run {line.id} was asked to stop", markup=False)

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_resume(self) -> None:
        from gpu_panel.run.resume_dialog import ResumeDialog
        from gpu_panel.run.resume_options import ResumeOptions

        with guard(self.app):
            if (line := self.line_at_cursor) is None:
                return
            options = await in_thread(lambda: ResumeOptions.read(line.run), name="panel-resume")
            if await self.app.push_screen_wait(ResumeDialog(line.run, options)):
                self._list_anew()
                self.open(line.run)

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_remove(self) -> None:
        with guard(self.app):
            if (line := self.line_at_cursor) is None:
                return
            if line.live:
                self.notify(f"Run {line.id} is running: s stops it", severity="warning",
                            markup=False)
            elif await ask_and_remove(self.app, line.run, line.name):
                self._list_anew()

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_prune(self) -> None:
        with guard(self.app):
            if self.lines and await ask_and_prune(self.app):
                self._list_anew()

    def _list_anew(self) -> None:
        self._feed.look_anew()
        self.look_at_once()
