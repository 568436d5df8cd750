"""What the supervisor does about the ranks of a person's own command.

The exit status of what it started is the truth about it. From the events of the ranks come which
one failed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence

from gpu_engine.common import procs
from gpu_engine.events import schema
from gpu_engine.events.writer import EventWriter, encode
from gpu_engine.plan.processes import HOOK
from gpu_engine.plan.wrappers import is_python
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.children import Child, descendants
from gpu_engine.supervisor.rank_state import RankState

UNSEEN = 30.0
"""Seconds that a Python may take to start before we say that nothing of it is seen."""

_WITHOUT = "its Python was started with -S, -I or -E, or with another PYTHONPATH"
SEEN = "python-seen"
"""A file of this name in the run folder: some Python of the command has loaded our hook."""

log = logging.getLogger(__name__)


def errors_below(events: Mapping[int, RankState], children: Sequence[Child]) -> list[Failure]:
    """The uncaught exceptions of ranks that no plan knows of, where what started them failed."""
    bad = [c for c in children if c.status != 0 and not c.killed]
    planned = {r for c in children for r in c.ranks}
    return [Failure(rank, bad[0].status or 1, bad[0].ended or time.time(), seen.view.error)
            for rank, seen in events.items() if bad and seen.view.error and rank not in planned]


def write_ends(run: Run, events: Mapping[int, RankState], children: Sequence[Child],
               stop_asked: bool) -> None:
    """Write how each rank ended, which it could not know itself. All of them are gone."""
    for rank, seen in events.items():
        view = seen.view
        if not seen.begun or view.outcome is not None:
            continue
        child = next((c for c in children if rank in c.ranks), children[0])
        if view.error is not None:
            outcome = "failed" if child.status != 0 or view.pid != child.pid else "completed"
        elif stop_asked:
            outcome = "stopped"
        elif child.status == 0 or (view.ended and view.pid != child.pid):
            outcome = "completed"
        else:
            outcome = "failed"
        _append(run, rank, schema.End(outcome, steps=None, seconds=None))


def warn_unseen(run: Run, child: Child, seen: RankState) -> None:
    """Say that nothing of this process is seen, where so, and what is known of why: now and then
    while it runs, and once it has ended."""
    now = time.monotonic()
    if seen.begun or seen.judged or (child.running and now - seen.looked < UNSEEN):
        return
    seen.read()
    if seen.begun:
        return
    seen.looked, seen.judged = now, not child.running
    why = _why_unseen(run, child)
    if why and seen.warned not in (why, _WITHOUT):
        seen.warned = why
        _append(run, child.ranks[0], schema.Warning(
            f"nothing of this process is seen but its output: {why}"))


def _why_unseen(run: Run, child: Child) -> str | None:
    """Why nothing is seen, as far as that can be told; None: there is nothing to say."""
    if not child.running:
        if not (run.path / SEEN).exists():
            return "it is no Python program, or its Python was started with -S, -I or -E"
        # A Python that has failed by itself says so in its output.
        return None if child.status else "it called no backward() and stepped no torch optimizer"
    pythons = [pid for pid in (child.pid, *_below(child.pid)) if is_python(procs.program(pid))]
    if not pythons:
        return "no Python runs in it or below it so far"
    if any(map(_hooked, pythons)) or (run.path / SEEN).exists():
        return None  # it has not trained yet
    return _WITHOUT


def _below(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return descendants(pid)
    return []


def _hooked(pid: int) -> bool:
    """Whether a Python process loads our hook at its start."""
    try:
        environment, words = procs.environment(pid), procs.arguments(pid)[1:]
    except OSError:
        return True  # it has just gone, or is somebody else's: nothing is known
    for word in words:
        if not word.startswith(b"-") or word.startswith(b"--"):
            break
        if set(word[1:]) & set(b"SIE"):
            return False
        if set(word[1:]) & set(b"cm"):
            break
    path = next((e[11:] for e in environment if e.startswith(b"PYTHONPATH=")), b"")
    return os.fsencode(HOOK) in path.split(b":")


def _append(run: Run, rank: int, event: schema.Event) -> None:
    try:
        writer = EventWriter(run.events(rank))
        with contextlib.closing(writer):
            writer.write(encode(event))
    except OSError as err:
        log.warning("rank %d: %s", rank, err)
