"""The screen with the processes on all GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult

from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.launch.detail.end_dialog import Stop
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.gpu_processes.pane import GpuProcessesPane
from gpu_panel.launch.runs.feed import RunLine

EVERY = 2.0
"""Seconds between paintings, as processes are sampled every two seconds."""


class GpuProcessesScreen(PaneScreen):
    """One pane, painted while it is shown."""

    SCOPE = "gpu-processes-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (GpuProcessesPane,)
    AUTO_FOCUS = f"#{GpuProcessesPane.NAME}"
    DEFAULT_CSS = "GpuProcessesScreen { GpuProcessesPane { height: 1fr; } }"

    def __init__(self, source: DeviceSource, runs: Callable[[], Sequence[RunLine]], stop: Stop,
                 look: Callable[[], object]) -> None:
        """`runs`: those whose ranks are named. `stop`: asks whether one should be stopped. `look`:
        has the runs read again."""
        super().__init__()
        self._look = look
        self._pane = GpuProcessesPane(source, runs, stop)

    def compose(self) -> ComposeResult:
        yield self._pane
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._paint)
        self.call_after_refresh(self._pane.paint)

    def _paint(self) -> None:
        if self.is_active:
            self._look()
            self._pane.paint()

    def bring_forward(self, name: str) -> None:
        """There is only one pane."""

    def action_back(self) -> None:
        self.dismiss(None)
