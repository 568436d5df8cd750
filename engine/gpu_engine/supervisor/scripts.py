"""How the supervisor judges the ranks of a person's own command.

The exit status of the started process decides how it ended. The ranks' events show which rank
failed first.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from gpu_engine.common import floors
from gpu_engine.events import schema
from gpu_engine.events.writer import EventWriter, encode
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor.cause import Failure
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.rank_state import RankState

UNSEEN = 30.0
"""Seconds after which a process without events is warned about: starting Python may take long."""

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
    """Write a warning if a process has no events, with the likely reason. This is checked once
    after `UNSEEN` seconds, while the process runs, and once after its end."""
    late = time.monotonic() - seen.started > UNSEEN
    if seen.begun or seen.judged or seen.warned or (child.running and not late):
        return
    seen.read()
    hooked = (run.path / SEEN).exists()
    if seen.begun or (child.running and hooked):
        return  # it has not trained yet
    seen.judged, seen.warned = not child.running, child.running
    if child.status:
        return  # its output says why, or it was ended before its Python had begun
    why = "it neither called backward() nor stepped a torch optimizer"
    if not hooked:
        why = f"{'so far ' * child.running}no Python of it has loaded gpu-panel's hook: it is no " \
            f"Python program, its Python is older than {'.'.join(map(str, floors.PYTHON))}, was " \
            "started with -S, -I or -E, or with another PYTHONPATH"
    warn(run, child.ranks[0], f"only the output of this process can be shown: {why}")


def warn(run: Run, rank: int, text: str) -> None:
    """Write a warning into a rank's record. An error is logged."""
    _append(run, rank, schema.Warning(text))


def _append(run: Run, rank: int, event: schema.Event) -> None:
    try:
        writer = EventWriter(run.events(rank))
        with contextlib.closing(writer):
            writer.write(encode(event))
    except OSError as err:
        log.warning("rank %d: %s", rank, err)
