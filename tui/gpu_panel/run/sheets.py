"""The sheet over the run screen, everything about the run, and the questions before it is
stopped."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.procs import describe_exit
from gpu_engine.plan.own_command import on_stop
from gpu_engine.runs import job, notes
from gpu_engine.runs.state import AttemptRecord, State
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm, Sheet
from gpu_panel.common.painting import put
from gpu_panel.run.states import WARNING, colour
from gpu_panel.run.store import RunStore


def about(store: RunStore, now: float, size: int | None = None,
          written: Sequence[str] = (), slurm: job.Job | None = None) -> list[Content]:
    """The whole sheet. `now`: Unix seconds; `size`: of the folder, bytes; `written`: notes;
    `slurm`: its job."""
    state = store.state
    out: list[Content] = []
    if state is not None:
        known = state.attempts or (AttemptRecord(state.attempt, state.started or state.created),)
        out += _part("Attempts", [_attempt(a, state, store.view.begins.get(a.number), now)
                                  for a in known])
    # Each notice with the lines that mend it, below it.
    warnings = [Content.styled(text, "$text-warning") if first else Content(text)
                for one in (state.warnings if state is not None else ())
                for first, text in ((True, f"{WARNING} {clean(one.message, 1000)}"),
                                    *((False, f"    {clean(c, 1000)}") for c in one.cure))]
    warnings += [Content.styled(f"{WARNING} {clean(w, 1000)}", "$text-warning")
                 for w in (*store.launch_warnings(), *store.view.warnings())]
    out += _part("Warnings", warnings)
    if state is not None and any(p.exit for p in state.processes):
        out += _part("Processes", [Content(
            f"rank {p.rank}  pid {p.pid}  "
            f"{'end not recorded' if p.exit is None else describe_exit(p.exit)}")
            for p in state.processes])
    plan = store.plan
    out += _part("What runs", [Content(clean(line, 4000))
                               for line in (plan.lines if plan is not None else ())])
    where = [f"folder      {clean(str(store.run.path), 1000)}"
             + ("" if size is None else f", {units.size(size)}")]
    if plan is not None and plan.cwd:
        where.append(f"runs in     {clean(plan.runs_in, 1000)}")
    if slurm is not None:
        where.append(f"Slurm       job {slurm.id}" + (
            f" on {clean(slurm.nodes, 1000)}" if slurm.nodes else ""))
    if store.view.saved is not None and store.view.saved.path:
        held = "" if store.view.saved.size is None else f", {units.size(store.view.saved.size)}"
        where.append(f"checkpoint  {clean(store.view.saved.path, 1000)}{held}")
    out += _part("Where", [Content(line) for line in where])
    return out + _part("What you wrote", [Content(clean(line)) for line in written])


def _attempt(a: AttemptRecord, state: State, step: int | None, now: float) -> Content:
    ended, outcome, reason = a.ended, a.outcome, a.reason
    if a.number == state.attempt and outcome is None:
        ended, outcome = state.ended, state.state
        reason = state.reason
    begun = time.strftime("%H:%M:%S", time.localtime(a.started))
    took = units.clock((ended or now) - a.started) if ended or outcome not in ("lost", None) \
        else units.UNKNOWN
    first = f"from step {step:,}  " if step is not None else ""
    return Content.assemble(
        (f"{a.number}  ", "bold"), f"{begun}  {took}  {first}",
        (outcome or "?", colour(outcome) if outcome else ""),
        f"  with {clean(' '.join(map(shlex.quote, a.changed)), 1000)}" if a.changed else "",
        f"  {clean(reason, 1000)}" if reason and outcome != "completed" else "")


def _part(title: str, lines: Iterable[Content]) -> list[Content]:
    lines = list(lines)
    return [Content.styled(title, "bold $text-primary"), *lines, Content("")] if lines else []


class AboutRun(Sheet):
    """The sheet; it is updated each second while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "dismiss", "close")]

    def __init__(self, store: RunStore, clock: Callable[[], float]) -> None:
        super().__init__(f"Run {store.run.id}")
        self._store, self._clock = store, clock
        self._bytes: int | None = None
        self._written: list[str] = []
        self._slurm: job.Job | None = None

    def on_mount(self) -> None:
        self._paint()
        self.set_interval(1.0, self._paint)
        self._measure()

    @work(exit_on_error=False)
    async def _measure(self) -> None:
        path = self._store.run.path
        self._slurm = await in_thread(lambda: job.read(path))
        self._written = await in_thread(lambda: notes.lines(notes.read(path)))
        self._bytes = await in_thread(self._store.run.size)
        self._paint()

    def _paint(self) -> None:
        put(self.text, Content("\n").join(about(self._store, self._clock(), self._bytes,
                                                self._written, self._slurm)))


def ask_to_cancel(run_id: str) -> Confirm:
    return Confirm(f"Cancel run {run_id}?", "It waits in Slurm's queue. Its job is cancelled.",
                   yes="Cancel it", no="Keep waiting")


def ask_to_leave(run_id: str) -> Confirm:
    return Confirm(f"Remove run {run_id} from the queue?",
                   "It has not started. It ends as stopped; e loads its settings into the form.",
                   yes="Remove it", no="Keep waiting")


def question(store: RunStore, *, now: bool) -> Confirm:
    """What is asked before a run is stopped. `now`: it has been asked to end before. Blocks."""
    ident, left = store.run.id, store.left
    if left:
        return Confirm(f"End the remaining processes of run {ident}?",
                       f"Its supervisor is gone; pid {', '.join(map(str, left[:8]))} still run"
                       f"{'s' * (len(left) == 1)}.", yes="End it", no="Leave it")
    if store.turn is not None:
        return ask_to_leave(ident)
    if store.state is not None and store.state.state == "queued" and job.read(store.run.path):
        return ask_to_cancel(ident)
    if now:
        return Confirm(f"End run {ident} now?", "It has been asked to stop. If you end it now, it "
                       "can save nothing more: everything after the last checkpoint is lost.",
                       yes="End now", no="Keep waiting")
    words = on_stop(store.plan and store.plan.spec)
    return Confirm(f"Stop run {ident}?", f"{words[0].upper()}{words[1:]}.",
                   yes="Stop", no="Keep running")
