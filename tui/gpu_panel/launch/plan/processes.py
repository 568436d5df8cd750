"""Every process that a launch would start, to read before it is started."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpu_engine.plan.records import LaunchPlan
from gpu_panel.launch.plan.pane import processes_text


class ProcessesScreen(ModalScreen[None]):
    """Arguments and added environment, process by process."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,v,q", "close", "close")]

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__()
        self._plan = plan

    def compose(self) -> ComposeResult:
        count = len(self._plan.processes)
        with VerticalScroll(classes="sheet") as box:
            box.border_title = f"Processes ─ {count} on this machine"
            box.border_subtitle = "esc close"
            yield Static(processes_text(self._plan))

    def action_close(self) -> None:
        self.dismiss(None)
