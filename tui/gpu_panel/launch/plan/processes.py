"""A screen with every process that a launch would start."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_panel.common.dialogs import Sheet


class ProcessesScreen(Sheet):
    """Shows the arguments and the added environment of each process."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "dismiss", "close")]

    def __init__(self, plan: LaunchPlan) -> None:
        hosts = {p.host for p in plan.processes}
        where = f"on {len(hosts)} machines" if len(hosts) > 1 else "on this machine" \
            if hosts == {None} else f"on {plan.processes[0].host}"
        super().__init__(f"Processes ─ {len(plan.processes)} {clean(where)}", processes_text(plan))


def processes_text(plan: LaunchPlan) -> Content:
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
