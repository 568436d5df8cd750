"""The plan pane: what will run, with the batch arithmetic, each rank's device, and the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpu_engine.common.clean import clean
from gpu_panel import keys
from gpu_panel.common.clipboard import copy
from gpu_panel.common.panes import Pane
from gpu_panel.common.static_text import put
from gpu_panel.launch.plan import environment

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.plan.records import LaunchPlan, RankPlan
    from gpu_engine.spec.write import Difference
    from gpu_panel.launch.reviewed import Review

NO_TORCH = "✗ No interpreter with torch was found."
_MOST_RANKS = 8
_MOST_PROBLEMS = 4


class PlanPane(VerticalScroll, Pane):
    """Shows the engine's plan, which Launch starts."""

    NAME = "plan"
    TITLE = "What will run"
    CALLED = "what will run"
    KEYS = keys.of("plan")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """What Launch will start: how many examples each step really sees, which device each
rank uses and what the rank calls it, the command that does the same without the panel, and the
environment of its processes. y copies the command; v shows every process in full."""

    def __init__(self) -> None:
        super().__init__(id=self.NAME)
        self.border_title = self.TITLE
        self._plan: LaunchPlan | None = None
        self._again = ""

    def compose(self) -> ComposeResult:
        yield Static(Content.styled("Reading the preset …", "$text-muted"), id="plan-text")

    def show_waiting(self, text: str) -> None:
        """Show `text` while the plan can't be made yet."""
        self.border_title, self.border_subtitle = self.TITLE, ""
        self._put(Content.styled(text, "$text-muted"))

    def show_review(self, review: Review, again: str = "") -> None:
        """Show the plan, or the problems if there are any. `again`: how it differs from the run
        whose settings were loaded."""
        self._plan, self._again = review.plan, again
        if review.plan is not None:
            self._show_plan(review.plan)
        else:
            self._show_problems(review.others, review.no_torch is not None)

    def _show_problems(self, problems: Sequence[Problem], no_torch: bool) -> None:
        self.border_title, self.border_subtitle = self.TITLE, ""
        lines = [Content.styled(NO_TORCH, "$text-error"),
                 Content("  T offers to install it, or to choose an interpreter that has it")
                 ] if no_torch else []
        lines += [Content.styled(f"✗ {clean(str(p))}", "$text-error")
                 for p in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(Content.styled(f"  and {len(problems) - _MOST_PROBLEMS} more",
                                        "$text-muted"))
        self._put(Content("\n").join(lines))

    def _show_plan(self, plan: LaunchPlan) -> None:
        self.border_subtitle = "y copy · v processes"
        many = len(plan.warnings)
        self.border_title = Content(
            self.TITLE + (f" ─ ! {many} warning{'s' * (many > 1)}" if many else ""))
        gap = "      "
        sentences = plan.sentences()
        first = [Content.styled(clean(sentences[0]), "bold"),
                 *(Content(gap + clean(sentence)) for sentence in sentences[1:])]
        # Warnings come early, as the end may be below the pane's edge.
        lines = [Content("").join(first),
                 *([Content.styled(clean(self._again), "$text-accent")] if self._again else []),
                 *(Content.styled(f"! {clean(w)}", "$text-warning") for w in plan.warnings),
                 *_ranks(plan, gap[:3])]
        if plan.code is not None:
            lines.append(Content(clean(plan.code.sentence())))
        if plan.not_compared is not None:
            lines.append(Content(clean(f"code: {plan.not_compared}")))
        for line in plan.lines:
            lines.append(Content.assemble(("$ ", "$text-muted"), (clean(line), "$text-primary")))
        lines.append(Content.styled(f"env {environment.summary(plan)}", "$text-muted"))
        self._put(Content("\n").join(lines))

    def _put(self, content: Content) -> None:
        put(self.query_one("#plan-text", Static), content)

    # --- keys ----------------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Copy the command."""
        if self._plan is None:
            self.notify("Nothing to copy: the form has problems", severity="warning")
            return
        copy(self.app, "\n".join(self._plan.lines))

    def action_processes(self) -> None:
        """Show every process in full."""
        if self._plan is None:
            self.notify("No processes to show: the form has problems",
                        severity="warning")
            return
        from gpu_panel.launch.plan.processes import ProcessesScreen

        self.app.push_screen(ProcessesScreen(self._plan))


def as_before(run_id: str, differences: Sequence[Difference]) -> str:
    """A sentence about how the form's content differs from a run: "as run 3f2a, but train.lr 0.1
    instead of 0.2"."""
    if not differences:
        return f"the same as run {run_id}"
    return f"as run {run_id}, but " + ", ".join(
        f"without {d.key}={d.before}" if d.after is None
        else f"{d.key}={d.after}" + (f" instead of {d.before}" if d.before is not None else "")
        for d in differences)


def _ranks(plan: LaunchPlan, gap: str) -> list[Content]:
    """Which device each rank sees; where it runs on hosts, a line each."""
    hosts = list(dict.fromkeys(r.host for r in plan.ranks))
    if hosts != [None]:
        width = max(len(host or "") for host in hosts)
        return [Content.assemble((f"{clean(host or ''):<{width}}  ", "bold"), _line(
            [r for r in plan.ranks if r.host == host], gap)) for host in hosts]
    said = _line(plan.ranks, gap)
    if plan.nodes > 1:
        said += Content(f"{gap}(machine {plan.node_rank} of {plan.nodes}, {plan.world_size} ranks "
                        "in all)")
    return [said]


def _line(ranks: Sequence[RankPlan], gap: str) -> Content:
    said = [clean(replace(r, host=None).sentence()) for r in ranks[:_MOST_RANKS]]
    if len(ranks) > _MOST_RANKS:
        said.append(f"… {len(ranks) - _MOST_RANKS} more")
    return Content(gap.join(said))
