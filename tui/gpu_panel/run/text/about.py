"""The text of the sheet about a run: how each attempt went, warnings, the command, the folder.

Pure: made from a store and the time. Everything from files goes through `clean`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence

from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.common.procs import describe_exit
from gpu_engine.runs.state import AttemptRecord, State
from gpu_panel.common import units
from gpu_panel.run.store import RunStore
from gpu_panel.run.text.states import WARNING, colour


def about(store: RunStore, now: float, size: int | None = None,
          written: Sequence[str] = ()) -> list[Content]:
    """The whole sheet. `now`: Unix seconds; `size`: of the folder, bytes; `written`: notes."""
    state = store.state
    out: list[Content] = []
    if state is not None:
        out += _part("Attempts", attempts(store, state, now))
    out += _part("Warnings", [*_notices(store), *(
        Content.styled(f"{WARNING} {clean(w, 1000)}", "$text-warning")
        for w in (*store.launch_warnings(), *store.view.warnings()))])
    if state is not None:
        out += _part("Processes", [Content(line) for line in processes(state)])
    plan = store.plan
    out += _part("What runs", [Content(clean(line, 4000))
                               for line in (plan.lines if plan is not None else ())])
    where = [f"folder      {clean(str(store.run.path), 1000)}"
             + ("" if size is None else f", {units.size(size)}")]
    if plan is not None and plan.cwd:
        where.append(f"runs in     {clean(plan.cwd, 1000)}")
    if store.view.saved is not None and store.view.saved.path:
        held = "" if store.view.saved.size is None else f", {units.size(store.view.saved.size)}"
        where.append(f"checkpoint  {clean(store.view.saved.path, 1000)}{held}")
    out += _part("Where", [Content(line) for line in where])
    return out + _part("What you wrote", [Content(clean(line)) for line in written])


def _notices(store: RunStore) -> list[Content]:
    """What is told of the run, with the lines that mend it."""
    return [Content.styled(text, "$text-warning") if first else Content(text)
            for one in (store.state.warnings if store.state is not None else ())
            for first, text in ((True, f"{WARNING} {clean(one.message, 1000)}"),
                                *((False, f"    {clean(c, 1000)}") for c in one.cure))]


def attempts(store: RunStore, state: State, now: float) -> list[Content]:
    known = state.attempts or (AttemptRecord(state.attempt, state.started or state.created),)
    return [_attempt(a, state, store.view.begins.get(a.number), now) for a in known]


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


def processes(state: State) -> list[str]:
    if all(not p.exit for p in state.processes):
        return []
    return [f"rank {p.rank}  pid {p.pid}  "
            f"{'end not recorded' if p.exit is None else describe_exit(p.exit)}"
            for p in state.processes]


def _part(title: str, lines: Iterable[Content]) -> list[Content]:
    lines = list(lines)
    return [Content.styled(title, "bold $text-primary"), *lines, Content("")] if lines else []
