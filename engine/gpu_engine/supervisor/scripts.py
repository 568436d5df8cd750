"""What the supervisor does about the ranks of a person's own command.

The exit status of what it started is the truth about it. From the events of the ranks come which
one failed first.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from gpu_engine.events import EventWriter, encode
from gpu_engine.runs import Run
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.seen import Seen

UNSEEN = 30.0
"""Seconds that a Python may take to start before we say that nothing of it is seen."""

log = logging.getLogger(__name__)


def errors_below(events: Mapping[int, Seen], children: Sequence[Child]) -> list[Failure]:
    """The uncaught exceptions of ranks that no plan knows of, where what started them failed."""
    bad = [c for c in children if c.status != 0 and not c.killed]
    planned = {r for c in children for r in c.ranks}
    return [Failure(rank, bad[0].status or 1, bad[0].ended or time.time(), seen.error)
            for rank, seen in events.items() if bad and seen.error and rank not in planned]


def write_ends(run: Run, events: Mapping[int, Seen], children: Sequence[Child],
               stop_asked: bool) -> None:
    """Write how each rank ended, which it could not know itself. All of them are gone."""
    for rank, seen in events.items():
        if not seen.begun or seen.outcome is not None:
            continue
        child = next((c for c in children if rank in c.ranks), children[0])
        if seen.error is not None:
            outcome = "failed" if child.status != 0 or seen.pid != child.pid else "completed"
        elif stop_asked:
            outcome = "stopped"
        elif child.status == 0 or (seen.ended and seen.pid != child.pid):
            outcome = "completed"
        else:
            outcome = "failed"
        _append(run, rank, encode("end", {"outcome": outcome, "steps": None, "seconds": None}))


def warn_unseen(run: Run, child: Child, seen: Seen) -> None:
    """Say once that nothing of this process is seen, where so."""
    if seen.warned or seen.begun:
        return
    if child.running and time.monotonic() - seen.began < UNSEEN:
        return
    seen.read()
    seen.warned = True
    if not seen.begun:
        _append(run, child.ranks[0], encode("warning", {
            "message": "nothing of this process is seen but its output: it is no Python program, "
                       "or its Python was started with -S, -I or -E"}))


def _append(run: Run, rank: int, line: bytes) -> None:
    try:
        writer = EventWriter(run.events(rank))
        with contextlib.closing(writer):
            writer.write(line)
    except OSError as err:
        log.warning("rank %d: %s", rank, err)
