"""The screen with the processes on all GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from gpu_panel import keys
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.rows import Line, Row
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.gpu_processes import lines
from gpu_panel.launch.gpu_processes.table import ProcessTable, Runs, Stop

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
