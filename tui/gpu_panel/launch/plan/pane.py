"""The plan pane: what will run, with the batch arithmetic, each rank's device, the command, and the
button that starts it. While the form is folded, it says what the form does in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from gpu_engine.common.clean import clean
from gpu_panel import keys
from gpu_panel.common.clipboard import copy
from gpu_panel.common.painting import put
from gpu_panel.common.panes import Pane

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.plan.records import LaunchPlan, RankPlan
    from gpu_engine.spec.write import Difference
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.reviewed import Review

_GAP = "   "
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
rank uses and what the rank calls it, and the command that does the same without the panel. y copies
the command; v shows every process in full, with its environment. Where the form is folded, the
first line says what is in it, and enter opens it."""

    def __init__(self) -> None:
        super().__init__(id=self.NAME)
        self._plan: LaunchPlan | None = None
        self._draft: Draft | None = None
        self._folded = False
        self._warnings = 0
        self._again = ""

    def compose(self) -> ComposeResult:
        yield Static("", id="plan-summary")
        yield Static(Content.styled("Reading the preset …", "$text-muted"), id="plan-text")

    @cached_property
    def _launch(self) -> Button:
        """Made late, as Textual has to read all style sheets for it."""
        return Button("Launch", id="launch", compact=True, action="screen.launch")

    def _offer(self, what: str, *, now: bool = True) -> None:
        """Offer `what` by the button. `now`: whether it can be pressed."""
        if not self._launch.is_attached:
            self.mount(self._launch)
        self._launch.disabled = not now
        self._launch.label = Content(what)

    # --- the folded form -----------------------------------------------------------------------

    def fold(self, folded: bool) -> None:
        """Say what the form says while it is `folded`, or else leave that to the form."""
        if folded != self._folded:
            self._folded = folded
            self.set_class(folded, "-folded")
            self._entitle()

    def show_draft(self, draft: Draft) -> None:
        """Take what the form shows, as it is now."""
        from gpu_panel.launch.plan.texts import summary  # after the first frame

        self._draft = draft
        put(self.query_one("#plan-summary", Static), summary(draft))
        self._entitle()

    def _entitle(self) -> None:
        title = self.TITLE
        if self._folded and self._draft is not None:
            title = f"Launch ─ {clean(self._draft.title)}"
        many = self._warnings
        self.border_title = Content(
            title + (f" ─ ! {many} warning{'s' * (many > 1)}" if many else ""))
        keys = ["2 whole form"] * self._folded + ["y copy", "v processes"] * bool(self._plan)
        self.border_subtitle = " · ".join(keys)

    # --- what will run -------------------------------------------------------------------------

    def show_waiting(self, text: str) -> None:
        """Show `text` while the plan can't be made yet."""
        self._plan = None
        self._offer("Launch", now=False)
        self._show([Content.styled(text, "$text-muted")])

    def show_review(self, review: Review, again: str = "") -> None:
        """Show the plan, or the problems if there are any. `again`: how it differs from the run
        whose settings were loaded."""
        self._plan, self._again = review.plan, again
        self._offer("Launch  ^l", now=not review.problems)
        if review.plan is not None:
            self._show_plan(review.plan)
        else:
            self._show_problems(review.problems)

    def _show_problems(self, problems: Sequence[Problem]) -> None:
        lines = [Content.styled(f"✗ {clean(str(p))}", "$text-error")
                 for p in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(Content.styled(f"  and {len(problems) - _MOST_PROBLEMS} more",
                                        "$text-muted"))
        self._show(lines)

    def _show_plan(self, plan: LaunchPlan) -> None:
        sentences = plan.sentences()
        first = Content(_GAP).join([Content.styled(clean(sentences[0]), "bold"),
                                    *(Content(clean(sentence)) for sentence in sentences[1:])])
        ranks = _ranks(plan)
        beside = Content(_GAP).join([first, *ranks])
        room = self.query_one("#plan-text").size.width
        if len(ranks) == 1 and beside.cell_length <= room:
            first, ranks = beside, []
        # Warnings come early, as the end may be below the pane's edge.
        lines = [first,
                 *([Content.styled(clean(self._again), "$text-accent")] if self._again else []),
                 *(Content.styled(f"! {clean(w)}", "$text-warning") for w in plan.warnings),
                 *ranks]
        if plan.code is not None:
            lines.append(Content(clean(plan.code.sentence())))
        if plan.not_compared is not None:
            lines.append(Content(clean(f"code: {plan.not_compared}")))
        for line in plan.lines:
            lines.append(Content.assemble(("$ ", "$text-muted"), (clean(line), "$text-primary")))
        self._show(lines, len(plan.warnings))

    def _show(self, lines: Sequence[Content], warnings: int = 0) -> None:
        self._warnings = warnings
        self._entitle()
        put(self.query_one("#plan-text", Static), Content("\n").join(lines))

    def on_resize(self) -> None:
        """Arithmetic and ranks stand on one line where there is room."""
        if self._plan is not None:
            self._show_plan(self._plan)

    # --- keys ----------------------------------------------------------------------------------

    async def on_click(self) -> None:
        if self._folded:
            await self.run_action("screen.pane('form')")

    def action_copy(self) -> None:
        if self._plan is None:
            self.notify("Nothing to copy: the form has problems", severity="warning")
            return
        copy(self.app, "\n".join(self._plan.lines))

    def action_processes(self) -> None:
        if self._plan is None:
            self.notify("No processes to show: the form has problems",
                        severity="warning")
            return
        from gpu_panel.launch.plan.texts import ProcessesScreen

        self.app.push_screen(ProcessesScreen(self._plan))


def as_before(run_id: str, differences: Sequence[Difference]) -> str:
    """How the form differs from a run: "as run 3f2a, but train.lr 0.1 instead of 0.2"."""
    if not differences:
        return f"the same as run {run_id}"
    return f"as run {run_id}, but " + ", ".join(
        f"without {d.key}={d.before}" if d.after is None
        else f"{d.key}={d.after}" + (f" instead of {d.before}" if d.before is not None else "")
        for d in differences)


def _ranks(plan: LaunchPlan) -> list[Content]:
    """Which device each rank sees; where it runs on hosts, a line each."""
    hosts = list(dict.fromkeys(r.host for r in plan.ranks))
    if hosts != [None]:
        width = max(len(host or "") for host in hosts)
        return [Content.assemble((f"{clean(host or ''):<{width}}  ", "bold"), _line(
            [r for r in plan.ranks if r.host == host])) for host in hosts]
    said = _line(plan.ranks)
    if plan.nodes > 1:
        said += Content(f"{_GAP}(machine {plan.node_rank} of {plan.nodes}, {plan.world_size} "
                        "ranks in all)")
    return [said]


def _line(ranks: Sequence[RankPlan]) -> Content:
    said = [clean(replace(r, host=None).sentence()) for r in ranks[:_MOST_RANKS]]
    if len(ranks) > _MOST_RANKS:
        said.append(f"… {len(ranks) - _MOST_RANKS} more")
    return Content(_GAP.join(said))
