"""A screen with every process that a launch would start."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from gpu_engine.common.clean import clean
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_panel.common.dialogs import LETTERS


class ProcessesScreen(ModalScreen[None]):
    """Shows the arguments and the added environment of each process."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape,v,q", "close", "close")]

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__()
        self._plan = plan

    def compose(self) -> ComposeResult:
        count = len(self._plan.processes)
        with VerticalScroll(classes="sheet") as box:
            hosts = len({p.host for p in self._plan.processes})
            where = f"on {hosts} machines" if hosts > 1 else "on this machine" \
                if self._plan.processes[0].host is None else f"on {self._plan.processes[0].host}"
            box.border_title = Content(f"Processes ─ {count} {clean(where)}")
            box.border_subtitle = "esc close"
            yield Static(processes_text(self._plan))

    def action_close(self) -> None:
        self.dismiss(None)


def processes_text(plan: LaunchPlan) -> Content:
    """The text about every process of the plan."""
    parts: list[Content] = []
    for number, process in enumerate(plan.processes):
        ranks = ", ".join(map(str, process.ranks))
        title = f"Process {number + 1} of {len(plan.processes)}: {process.role}"
        title += f" on {clean(process.host)}" if process.host is not None else ""
        parts.append(Content.styled(f"{title}, rank{'s' if len(process.ranks) > 1 else ''} {ranks}",
                                    "bold $text-primary"))
        parts.append(Content(clean(shlex.join(process.argv))))
        for key, value in process.env.items():
            parts.append(Content.assemble(("  " + key, "$text-muted"), "=", clean(value)))
        if process.unset:
            parts.append(Content.assemble(("  not inherited ", "$text-muted"),
                                          ", ".join(process.unset)))
        if process.cores:
            parts.append(Content.assemble(("  cores ", "$text-muted"),
                                          ", ".join(map(str, process.cores))))
        parts.append(Content.assemble(("  output goes to ", "$text-muted"), clean(process.log)))
        parts.append(Content(""))
    parts.append(Content.styled(f"{RUN_DIR} is the run's folder, which gets its name at launch.",
                                "$text-muted"))
    if any(p.env.get("MASTER_PORT") == "0" for p in plan.processes):
        parts.append(Content.styled("MASTER_PORT 0 is any free port, taken at launch.",
                                    "$text-muted"))
    return Content("\n").join(parts)
