"""What the supervisor does about the ranks of a person's own command.

The exit status of what it started is the truth about it. From the events of the ranks come which
one failed first, and whom to ask to stop below a launcher.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_engine import procs
from gpu_engine.events import EventWriter, encode
from gpu_engine.runs import Run
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.seen import Seen

UNSEEN = 30.0
"""Seconds that a Python may take to start before we say that nothing of it is seen."""
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_WAIT = 3.0
"""Seconds that a launcher gets to notice by itself that its ranks have ended."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Below:
    """Ranks below a launcher that were asked to stop."""

    pids: Sequence[int]
    ticks: Sequence[int | None] = ()
    gone: float | None = None
    """Monotonic seconds when the last of them had ended."""

    def __post_init__(self) -> None:
        self.ticks = [procs.start_ticks(p) for p in self.pids]


def end_launchers(running: Sequence[Child], below: dict[int, Below]) -> None:
    """Ask launchers to end whose ranks have: a shell at once, as it would go on to its next
    line; others when they don't notice."""
    for child in running:
        asked = below.get(child.pid)
        if asked is None:
            continue
        if any(procs.alive(p, t) for p, t in zip(asked.pids, asked.ticks, strict=True)):
            continue
        asked.gone = asked.gone or time.monotonic()
        if _name(child.pid) in _SHELLS or time.monotonic() - asked.gone > _WAIT:
            del below[child.pid]
            child.signal(signal.SIGTERM)


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


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:  # noqa: PTH123
        return file.read().strip()
    return ""
