"""How the supervisor judges the ranks of a person's own command.

The exit status of the started process decides how it ended. The ranks' events show which rank
failed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence

from gpu_engine.common import floors, procs
from gpu_engine.events import schema
from gpu_engine.events.writer import EventWriter, encode
from gpu_engine.plan.own_command import HOOK, is_python
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.children import Child, descendants
from gpu_engine.supervisor.rank_state import RankState

UNSEEN = 30.0
"""Seconds after which a process without events is warned about: starting Python may take long."""

_WITHOUT = "its Python was started with -S, -I or -E, or with another PYTHONPATH"
SEEN = "python-seen"
"""The hook creates a file of this name in the run folder when a Python of the command loads it."""

log = logging.getLogger(__name__)


def errors_below(events: Mapping[int, RankState], children: Sequence[Child]) -> list[Failure]:
    """The uncaught exceptions of ranks that are not in the plan, if the process that started them
    failed."""
    bad = [c for c in children if c.status != 0 and not c.killed]
    planned = {r for c in children for r in c.ranks}
    return [Failure(rank, bad[0].status or 1, bad[0].ended or time.time(), seen.view.error)
            for rank, seen in events.items() if bad and seen.view.error and rank not in planned]


def write_ends(run: Run, events: Mapping[int, RankState], children: Sequence[Child],
               orphans: Mapping[int, int], stop_asked: bool, *, over: bool = True) -> None:
    """Write the end event of each rank, which can't know its exit status itself. `orphans`: the
    exit statuses of those whose command had ended before. `over`: whether all have ended; else only
    those get one that are `children` themselves and have exited with 0, which ends no other. One
    that has not reached its own end below a command that ended well gets none: it may have been
    killed."""
    for rank, seen in events.items():
        view = seen.view
        child = next((c for c in children if rank in c.ranks), children[0])
        itself = view.pid == child.pid
        if not seen.begun or view.outcome is not None or not (
                over or (itself and child.status == 0)):
            continue
        late = orphans.get(view.pid or 0)
        if stop_asked and (view.error is None or view.error.type == "KeyboardInterrupt"):
            outcome = "stopped"
        elif view.error is not None:
            outcome = "failed" if child.status != 0 or not itself else "completed"
        elif late is not None:
            outcome = "failed" if late else "completed"
        elif view.ended and not itself:
            outcome = "completed"
        elif child.status != 0:
            outcome = "failed"
        elif itself or child.role == "launcher":
            outcome = "completed"
        else:
            continue
        _append(run, rank, schema.End(outcome, steps=None, seconds=None))


def warn_unseen(run: Run, child: Child, seen: RankState) -> None:
    """Write a warning if a process has no events, with the reason if it is known. This is checked
    every `UNSEEN` seconds while the process runs, and once after its end."""
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
        warn(run, child.ranks[0], f"only the output of this process can be shown: {why}")


def warn(run: Run, rank: int, text: str) -> None:
    """Write a warning into a rank's record. An error is logged."""
    _append(run, rank, schema.Warning(text))


def _why_unseen(run: Run, child: Child) -> str | None:
    """Why a process has no events; None if that is not known, or needs no warning."""
    if child.status:  # its output says why, or it was ended before its Python had begun
        return None
    if not child.running:
        if not (run.path / SEEN).exists():
            return ("it is not a Python program, or its Python is older than "
                    f"{'.'.join(map(str, floors.PYTHON))} or was started with -S, -I or -E")
        return "it neither called backward() nor stepped a torch optimizer"
    below = []
    with contextlib.suppress(OSError):
        below = descendants(child.pid)
    pythons = [pid for pid in (child.pid, *below) if is_python(procs.program(pid))]
    if not pythons:
        return "neither it nor a process below it has run Python so far"
    if any(map(_hooked, pythons)) or (run.path / SEEN).exists():
        return None  # it has not trained yet
    return _WITHOUT


def _hooked(pid: int) -> bool:
    """Whether a Python process loads our hook at its start."""
    try:
        environment, words = procs.environment(pid), procs.arguments(pid)[1:]
    except OSError:
        return True  # it has just ended or belongs to another user: not known
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
