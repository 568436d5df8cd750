"""The plan pane: what will run, with the batch arithmetic, each rank's device, the command, and the
button that starts it; and a screen with every process that a launch would start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from gpu_engine.common import units
from gpu_engine.common.clean import clean, clean_text
from gpu_engine.spec import modes
from gpu_panel import keys
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import Sheet
from gpu_panel.common.painting import put
from gpu_panel.common.panes import Pane

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.plan.records import LaunchPlan, RankPlan
    from gpu_engine.spec.write import Difference
    from gpu_panel.launch.review import Review

_GAP = "   "
_MOST_RANKS = 8
_MOST_PROBLEMS = 4
_FOLDER = "{run.dir} is the run's folder, which gets its name at launch."


class PlanPane(VerticalScroll, Pane):
    """Shows the engine's plan, which Launch starts."""

    NAME = "plan"
    TITLE = "What will run"
    CALLED = "what will run"
    KEYS = keys.of("plan")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """What Launch will start: what is trained and how, how many examples each step really
sees, which device each rank uses and what the rank calls it, and the command that does the same
without the panel. "Per GPU" is the share of one rank; "per slot" is the same on CPU slots. y copies
the command; v shows every process in full, with its environment. enter
opens the form, in which all of it is chosen."""

    def __init__(self) -> None:
        super().__init__(id=self.NAME)
        self._plan: LaunchPlan | None = None
        self._script: str | None = None
        self.entitle("")

    def compose(self) -> ComposeResult:
        yield Static(Content.styled("Reading the preset …", "$text-muted"), id="plan-text")

    def entitle(self, draft: str) -> None:
        """Say whose settings these are: "preset ddp (changed)"."""
        many = len(self._plan.warnings) if self._plan is not None else 0
        self.border_title = Content(" ─ ".join(filter(None, (
            self.TITLE, clean(draft), f"! {units.counted(many, 'warning')}" * bool(many)))))
        self.border_subtitle = " · ".join(
            ["enter form", *["y copy", "v batch script" if self._script else "v processes"] * (
                self._plan is not None)])

    @cached_property
    def _launch(self) -> Button:
        """Made late, as Textual has to read all style sheets for it."""
        return Button("Launch", id="launch", compact=True, action="screen.launch")

    def _show(self, lines: Sequence[Content], label: str, *, now: bool) -> None:
        """Show this, and offer to launch. `now`: whether the button can be pressed."""
        if not self._launch.is_attached:
            self.mount(self._launch)
        self._launch.disabled = not now
        self._launch.label = Content(label)
        put(self.query_one("#plan-text", Static), Content("\n").join(lines))

    def show_waiting(self, text: str) -> None:
        """Show `text` while the plan can't be made yet."""
        self._plan = None
        self._show([Content.styled(text, "$text-muted")], "Launch", now=False)

    def show_review(self, review: Review, draft: str, again: str,
                    labels: Sequence[str]) -> None:
        """Show the plan, or the problems if there are any. `draft`: its title. `again`: how it
        differs from the run whose settings were loaded. `labels`: for each
        problem that of the field below which the form shows it now, else ""; [] for none."""
        plan = self._plan = review.plan
        self._script = review.script
        if plan is None:
            lines = _of_problems(review.problems, labels)
        else:
            first, *rest = map(clean, (*_what(plan), *plan.sentences(), *filter(None, [plan.fits])))
            lines = [Content(_GAP).join([Content.styled(first, "bold"), *map(Content, rest)])]
            # What differs and the warnings come early, as the end may be below the pane's edge.
            lines += [Content.styled(clean(again), "$text-accent")] if again else []
            lines += [Content.styled(f"! {clean(w)}", "$text-warning") for w in plan.warnings]
            lines += _ranks(plan)
            if plan.code is not None:
                lines.append(Content(clean(plan.code.sentence())))
            if plan.not_compared is not None:
                lines.append(Content(clean(f"code: {plan.not_compared}")))
            lines += [Content.assemble(("$ ", "$text-muted"), (clean(line), "$text-primary"))
                      for line in plan.lines]
        self._show(lines, "Launch  ^l", now=not review.problems)
        self.entitle(draft)

    # --- keys ----------------------------------------------------------------------------------

    async def on_click(self) -> None:
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
        self.app.push_screen(ProcessesScreen(self._plan, self._script))


def _what(plan: LaunchPlan) -> list[str]:
    """What is trained and how: the task, the mode, the precision and how long. Of a person's own
    command no more than it is told."""
    from gpu_engine.plan import own_command  # after the first frame

    spec = plan.for_people().spec
    task, train, dtype = spec.task, spec.train, spec.amp.dtype
    command, mode = task.command, modes.find(plan.mode)
    told = [key for key in ("amp.dtype", "train.steps", "train.epochs")
            if own_command.is_told(command, key)]
    words = [shlex.join(command) if command is not None else
             (task.use or "no task").rpartition(":")[2],
             mode.shape(plan.replicas, plan.nodes) if mode is not None else plan.mode]
    if "amp.dtype" in told:
        words.append("AMP off" if dtype == "off" else dtype)
    if train.steps is not None:
        words += [units.counted(train.steps or 0, "step")] * ("train.steps" in told)
    elif "train.epochs" in told:
        words.append(units.counted(train.epochs or 1, "epoch"))
    return [words[0] if len(words[0]) <= 60 else f"{words[0][:59]}…", *words[1:]]


def _of_problems(problems: Sequence[Problem], labels: Sequence[str]) -> list[Content]:
    rest = [p for p, label in zip_longest(problems, labels) if not label]
    lines = [Content.styled(f"✗ {clean(str(p))}", "$text-error") for p in rest[:_MOST_PROBLEMS]]
    if named := ", ".join(dict.fromkeys(filter(None, labels))):
        lines.append(Content.styled(f"✗ see the form: {clean(named)}", "$text-error"))
    more = len(rest) - _MOST_PROBLEMS
    return [*lines, *([Content.styled(f"  and {more} more", "$text-muted")] if more > 0 else [])]


def as_before(run_id: str, differences: Sequence[Difference]) -> str:
    """How the form differs from a run: "as run 3f2a, but train.lr 0.1 instead of 0.2"."""
    if not differences:
        return f"the same as run {run_id}"
    return f"as run {run_id}, but " + ", ".join(
        f"without {d.key}={d.before}" if d.after is None
        else f"{d.key}={d.after}" + (f" instead of {d.before}" if d.before is not None else "")
        for d in differences)


def _ranks(plan: LaunchPlan) -> list[Content]:
    """Which device each rank sees; where it runs on hosts, a line each. Of a run on Slurm what it
    is asked for."""
    if not plan.ranks and plan.chosen is not None:
        return [Content(clean(plan.chosen))]
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


class ProcessesScreen(Sheet):
    """Shows the arguments and the added environment of each process; of a run on Slurm the batch
    script."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "dismiss", "close")]

    def __init__(self, plan: LaunchPlan, script: str | None = None) -> None:
        if script is not None:
            super().__init__("Batch script, which sbatch is given", Content.assemble(
                clean_text(script), "\n", (_FOLDER, "$text-muted")))
            return
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
        for label, words in (("not inherited", process.unset), ("cores", process.cores),
                             ("output goes to", [clean(process.log)])):
            if words:
                parts.append(Content.assemble((f"  {label} ", "$text-muted"),
                                              ", ".join(map(str, words))))
        parts.append(Content(""))
    parts.append(Content.styled(_FOLDER, "$text-muted"))
    if any(p.env.get("MASTER_PORT") == "0" for p in plan.processes):
        parts.append(Content.styled("MASTER_PORT 0 is any free port, taken at launch.",
                                    "$text-muted"))
    return Content("\n").join(parts)
