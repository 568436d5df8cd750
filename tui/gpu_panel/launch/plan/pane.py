"""What will run: batch arithmetic, which device each rank sees, the line that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_panel.launch.plan import environment

_MOST_RANKS = 8
_MOST_PROBLEMS = 4


class CommandPreview(VerticalScroll):
    """Comes from the plan that Launch starts, never from the form."""

    HELP: ClassVar[str] = """What Launch does: how many examples each step really sees, which
device each rank uses and the name it has there, the line that does the same without the panel,
and the environment that its processes get. y copies that line; v shows every process whole."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "What will run"

    def compose(self) -> ComposeResult:
        yield Static(Content.styled("Reading the preset …", "$text-muted"), id="plan-text")

    def show_waiting(self, text: str) -> None:
        self.border_title, self.border_subtitle = "What will run", ""
        self._put(Content.styled(text, "$text-muted"))

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Nothing runs as long as something does not fit: no plan is shown beside that."""
        self.border_title, self.border_subtitle = "What will run", ""
        lines = [Content.styled(f"✗ {clean(str(p))}", "$text-error")
                 for p in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(Content.styled(f"  and {len(problems) - _MOST_PROBLEMS} more",
                                        "$text-muted"))
        self._put(Content("\n").join(lines))

    def show_plan(self, plan: LaunchPlan) -> None:
        self.border_subtitle = "y copy · v processes"
        many = len(plan.warnings)
        self.border_title = "What will run" + (f" ─ ! {many} warning{'s' * (many > 1)}" if many
                                               else "")
        gap = "      "
        said = plan.sentences()
        first = [Content.styled(clean(said[0]), "bold"),
                 *(Content(gap + clean(words)) for words in said[1:])]
        # Warnings come before what is read least: what does not fit below can't be missed.
        lines = [Content("").join(first),
                 *(Content.styled(f"! {clean(w)}", "$text-warning") for w in plan.warnings),
                 _ranks(plan, gap[:3])]
        for line in plan.lines:
            lines.append(Content.assemble(("$ ", "$text-muted"), (clean(line), "$text-primary")))
        lines.append(Content.styled(f"env {environment.summary(plan)}", "$text-muted"))
        self._put(Content("\n").join(lines))

    def _put(self, content: Content) -> None:
        self.query_one("#plan-text", Static).update(content)


def _ranks(plan: LaunchPlan, gap: str) -> Content:
    said = [clean(r.sentence()) for r in plan.ranks[:_MOST_RANKS]]
    if len(plan.ranks) > _MOST_RANKS:
        said.append(f"… {len(plan.ranks) - _MOST_RANKS} more")
    if plan.nodes > 1:
        said.append(f"(machine {plan.node_rank} of {plan.nodes}, {plan.world_size} ranks in all)")
    return Content(gap.join(said))


def processes_text(plan: LaunchPlan) -> Content:
    """Every process of the plan, for reading."""
    parts: list[Content] = []
    for number, process in enumerate(plan.processes):
        ranks = ", ".join(map(str, process.ranks))
        title = f"Process {number + 1} of {len(plan.processes)}: {process.role}"
        parts.append(Content.styled(f"{title}, rank{'s' if len(process.ranks) > 1 else ''} {ranks}",
                                    "bold $text-primary"))
        parts.append(Content(clean(shlex.join(process.argv))))
        for key, value in process.env.items():
            parts.append(Content.assemble(("  " + key, "$text-muted"), "=", clean(value)))
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
