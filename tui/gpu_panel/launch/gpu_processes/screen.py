"""Lists of processes on GPUs, to sort them and to end one; a screen with those on all GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from gpu_panel import keys
from gpu_panel.common.errors import guarded
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.gpu_processes import lines
from gpu_panel.launch.gpu_processes.lines import GpuProcess
from gpu_panel.launch.runs.line import RunLine

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

Runs = Callable[[], Sequence[RunLine]]
Stop = Callable[[RunLine, str], object]


class ProcessTable(Rows):
    """Rows of which some are processes. A subclass fills `found` when it paints."""

    CHANGES: ClassVar[frozenset[str]] = frozenset({"end"})
    ORDERS: ClassVar[Sequence[str]]

    def __init__(self, runs: Runs, stop: Stop, *, id: str) -> None:
        """`runs`: those whose ranks are named. `stop`: asks, with a title, whether to stop one."""
        super().__init__(id=id)
        self.runs, self._stop = runs, stop
        self.order = self.ORDERS[0]
        self.found: list[GpuProcess] = []

    def paint(self) -> None:
        raise NotImplementedError

    @property
    def at_cursor(self) -> GpuProcess | None:
        """The process under the cursor; None if there is none."""
        return next((p for p in self.found if p.key == self.key_at_cursor), None)

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        at = self.at_cursor
        return of_process(at.process.pid, at.host) if at is not None else {}

    def action_order(self) -> None:
        """Sort in the next way, and go to the first process."""
        self.order = self.ORDERS[(self.ORDERS.index(self.order) + 1) % len(self.ORDERS)]
        self.paint()
        self.cursor = 0

    @guarded("end-process")
    async def action_end(self) -> None:
        """Ask, then signal the process under the cursor, or stop the run whose rank it is."""
        from gpu_panel.launch.detail.end_process import end_or_stop

        if (at := self.at_cursor) is None:
            self.notify("No process selected", severity="warning")
            return
        await end_or_stop(self.app, at.process, at.host, self.runs(), self._stop)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()


EVERY = 2.0
"""Seconds between paintings, as processes are sampled every two seconds."""


class GpuProcessesPane(ProcessTable, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """One line for each process that is on a GPU, with all its GPUs."""

    NAME = "gpu-processes"
    TITLE = "Processes on all GPUs"
    CALLED = "the processes"
    TAB = False
    KEYS = keys.of("gpu-processes")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    ORDERS = tuple(lines.ORDERS)
    HELP = """Every process that is on a GPU of this machine or of a host, with its owner, the run
and the rank that it is if it is one of yours, its memory on all its GPUs, and its age. x sends a
signal to one of your own, or to anybody's if you are root, and asks first."""

    def __init__(self, source: DeviceSource, runs: Runs, stop: Stop) -> None:
        super().__init__(runs, stop, id=self.NAME)
        self._source = source
        self._notes: list[str] = []

    def paint(self) -> None:
        machines = self._source.machines
        self.found = lines.gather(machines, lines.named_ranks(self.runs()), self.order)
        self._notes = lines.unlisted(machines)
        many = f"{len(self.found)} by {self.order}" if self.found else "none"
        self.entitle(f"{self.TITLE} ─ {many}")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return lines.build(self.found, self._notes, width, time.time())


class GpuProcessesScreen(PaneScreen):
    """One pane, painted while it is shown."""

    SCOPE = "gpu-processes-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (GpuProcessesPane,)
    AUTO_FOCUS = f"#{GpuProcessesPane.NAME}"
    DEFAULT_CSS = "GpuProcessesScreen { GpuProcessesPane { height: 1fr; } }"

    def __init__(self, source: DeviceSource, runs: Runs, stop: Stop,
                 poll: Callable[[], object]) -> None:
        """`runs` and `stop`: as the table's. `poll`: has the runs read again."""
        super().__init__()
        self._poll = poll
        self._pane = GpuProcessesPane(source, runs, stop)

    def compose(self) -> ComposeResult:
        yield self._pane
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._paint)
        self.call_after_refresh(self._pane.paint)

    def _paint(self) -> None:
        if self.is_active:
            self._poll()
            self._pane.paint()
