"""The table of the processes on all GPUs: sorted, and each can be sent a signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import BindingType

from gpu_panel import keys
from gpu_panel.common.errors import guard
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.detail.end_dialog import Stop, end_or_stop, ranks_by_pid
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.gpu_processes import lines
from gpu_panel.launch.gpu_processes.lines import ORDERS, GpuProcess, Machine
from gpu_panel.launch.runs.feed import RunLine

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values


class GpuProcessesPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """One line for each process that is on a GPU, with all its GPUs."""

    NAME = "gpu-processes"
    TITLE = "Processes on all GPUs"
    CALLED = "the processes"
    TAB = False
    KEYS = keys.of("gpu-processes")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"end"})
    HELP = """Every process that is on a GPU of this machine or of a host, with its owner, the run
and the rank that it is if it is one of yours, its memory on all its GPUs, and its age. x sends a
signal to one of your own, or to anybody's if you are root, and asks first."""

    def __init__(self, source: DeviceSource, runs: Callable[[], Sequence[RunLine]], stop: Stop
                 ) -> None:
        """`runs`: those whose ranks are named."""
        super().__init__(id=self.NAME)
        self._source, self._runs, self._stop = source, runs, stop
        self._order = "memory"
        self._found: list[GpuProcess] = []
        self._notes: list[str] = []

    def paint(self) -> None:
        """Draw the newest samples of all devices."""
        source = self._source
        machines = [Machine(None, source.inventory, source.snapshot),
                    *(Machine(s.host.name, s.inventory, s.snapshot) for s in source.hosts)]
        ours = {pid: f"run {run.id} rank {rank}"
                for pid, (run, rank) in ranks_by_pid(self._runs()).items()}
        self._found = lines.gather(machines, ours, self._order)
        self._notes = lines.unlisted(machines)
        many = f"{len(self._found)} by {self._order}" if self._found else "none"
        self.entitle(f"{self.TITLE} ─ {many}")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return lines.build(self._found, self._notes, width, time.time())

    # --- keys ----------------------------------------------------------------------------------

    @property
    def _at_cursor(self) -> GpuProcess | None:
        return next((p for p in self._found if p.key == self.key_at_cursor), None)

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        at = self._at_cursor
        return of_process(at.process.pid, at.host) if at is not None else {}

    def action_order(self) -> None:
        """Sort in the next way, and go to the first process."""
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self.paint()
        self.cursor = 0

    @work(exit_on_error=False, group="end-process")
    async def action_end(self) -> None:
        """Ask the person, then send a signal to the process under the cursor. If it is a rank,
        stop its run."""
        with guard(self.app):
            at = self._at_cursor
            if at is None:
                self.notify("No process selected", severity="warning")
                return
            await end_or_stop(self.app, at.process, at.host, self._runs(), self._stop)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
