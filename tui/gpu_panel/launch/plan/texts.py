"""What the form says, in one line, for while it is folded; and a screen with every process that a
launch would start."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.plan import own_command
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_engine.spec import modes
from gpu_panel.common.dialogs import Sheet
from gpu_panel.launch.draft import Draft

_GAP = "   "


def summary(draft: Draft) -> Content:
    """Task, mode, batch, precision and length: "BytesGPT   DDP   batch 32 global   bf16   300
    steps". Of a person's own command no more than it is told. The learning rate stands with the
    arithmetic."""
    command = draft.value("task.command")

    def told(key: str) -> bool:
        return command is None or own_command.is_told(
            command if isinstance(command, list) else None, key)

    mode = modes.find(draft.mode)
    task = draft.text("task.command") if command is not None else \
        draft.text("task.use").rpartition(":")[2] or "no task"
    words = [mode.short if mode is not None else draft.mode]
    if told("batch.size"):
        meaning = draft.text("batch.meaning").replace("_", " ").replace("gpu", "GPU")
        words.append(f"batch {draft.text('batch.size')} {meaning}")
    if told("batch.accumulate") and draft.text("batch.accumulate") != "1":
        words.append(f"accumulate {draft.text('batch.accumulate')}")
    if told("amp.dtype"):
        off = draft.text("amp.dtype") == "off"
        words.append("AMP off" if off else draft.text("amp.dtype"))
    if draft.value("train.steps") is not None:
        words += [f"{draft.text('train.steps')} steps"] * told("train.steps")
    elif told("train.epochs"):
        count = draft.text("train.epochs") or "1"
        words.append(f"{count} epoch{'s' * (count != '1')}")
    return Content.assemble((clean(task, 60), "bold"), *(_GAP + clean(word) for word in words))


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
    for number, process in enumerate(plan.for_people().processes):
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
