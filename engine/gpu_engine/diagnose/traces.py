"""Asking the ranks of a live run for a trace of torch's profiler of their next steps, which
`worker/rank/tracer.py` writes; what is in it is for Perfetto."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_json_inside
from gpu_engine.events.paths import MOST_TRACED, TRACE_REQUEST, TRACES
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Trace
from gpu_engine.events.view import RunView
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run

LONGEST = 3600.0
"""Seconds that may be waited for steps."""
_NEAR = 1 << 16
"""Bytes of events that tell how far a rank is."""
_SEEN = 2.5
"""Seconds within which every rank has seen a request."""
_EVERY = 0.2
_NAMED = 8
"""The most files that a message names."""


def made(run: Run) -> list[Path]:
    """The files that were traced so far, by their names. None of a folder that is a link."""
    folder = run.path / TRACES
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return sorted(folder / one.name for one in entries
                          if one.is_file(follow_symlinks=False) and not one.name.startswith("."))
    except OSError:
        return []


def able(run: Run, steps: int, ranks: Collection[int]) -> list[int]:
    """Those of `ranks` (none: all) that can be asked for a trace of so many steps. Raises
    UserError."""
    trust.require_ours(run.path)
    state, there = run.state(), run.ranks()
    if not state.live:
        before = made(run)
        more = f" and {len(before) - _NAMED} more" if len(before) > _NAMED else ""
        raise UserError(f"run {run.id} is not running: it is {state.state}" + (
            "; traced before, for https://ui.perfetto.dev: "
            f"{', '.join(clean(str(one)) for one in before[:_NAMED])}{more}" if before else ""))
    if not 0 < steps <= MOST_TRACED:
        raise UserError(f"{steps} steps: from 1 to {MOST_TRACED} can be traced")
    if unknown := set(ranks) - set(there):
        raise UserError(f"run {run.id} has no rank {min(unknown)} yet")
    return sorted(ranks or there)


def trace(run: Run, *, steps: int = 3, ranks: Collection[int] = (), wait: float = 120.0
          ) -> dict[int, Trace | None]:
    """Have `ranks` (none: all) trace their next steps, and wait for at most `wait` seconds. They
    are on this machine: `places.verbs.ask_for_traces` asks those of any.

    Returns what each rank has answered; None: nothing, as it makes no steps or has ended. Raises
    UserError and OSError.
    """
    asked, view = able(run, steps, ranks), RunView()
    view.add(asked)
    tails = {rank: Tail(run.events(rank)) for rank in asked}
    for tail in tails.values():
        tail.skip(keep=_NEAR)
    until = time.time() + _SEEN
    while True:
        _read(tails, view)
        if all(v.steps_per_s for v in view.ranks.values()) or time.time() > until:
            break
        time.sleep(_EVERY)
    begun = time.time()
    # All ranks begin at the same step: one that none of them reaches before the last has seen the
    # request.
    last = max((v.at_step or 0 for v in view.ranks.values()), default=0)
    pace = max((v.steps_per_s or 0.0 for v in view.ranks.values()), default=0.0)
    write_json_inside(run.path, TRACE_REQUEST, {
        "steps": steps, "from": last + math.ceil(pace * _SEEN), "until": begun + wait,
        "ranks": asked}, settled=False)
    try:
        while True:
            _read(tails, view)
            answers = {r: one if (one := v.trace) is not None and one.t >= begun else None
                       for r, v in view.ranks.items()}
            if all(answers.values()) or time.time() > begun + wait or not run.state().live:
                return answers
            time.sleep(_EVERY)
    finally:
        (run.path / TRACE_REQUEST).unlink(missing_ok=True)


def _read(tails: dict[int, Tail], view: RunView) -> None:
    for rank, tail in tails.items():
        for event in tail.read():
            view.fold(rank, event)


def describe(run: Run, answer: Trace | None) -> tuple[Path | None, str | None]:
    """Of what a rank of `run` has answered: the file, or why there is none."""
    if answer is None:
        return None, "no trace: it made no step in that time, or has ended; gpu-engine stacks " \
            f"{run.id} says where it is"
    if answer.path is None:
        return None, f"no trace: {answer.problem}"
    return run.path / answer.path, None
