"""What is left of a run without a supervisor: its last step, its last checkpoint, and processes
that still run. These exist if supervisor and guard were both killed above a person's own launcher.
`run` is always the path of the run folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.events.paths import HOSTS, events_path, ranks_with_files
from gpu_engine.events.reader import END, backwards
from gpu_engine.events.schema import Checkpoint, End, Phase, Step

GRACE = 5.0
"""Seconds that processes get to end by themselves."""
_MOST_RANKS = 16


def describe(run: Path) -> list[str]:
    """What is known of its end: "last step 120" and "last checkpoint step-00000100", if any."""
    # Of thousands of ranks some will do: they are within a step of each other.
    steps = [_step_in(events_path(run, rank)) for rank in ranks_with_files(run)[:_MOST_RANKS]]
    step, saved = max((s for s in steps if s), default=None), last_checkpoint(run)
    return ([f"last step {step:,}"] if step is not None else []) \
        + ([f"last checkpoint {saved}"] if saved is not None else [])


def last_checkpoint(run: Path) -> str | None:
    """The name of the newest finished checkpoint; None if there is none. Only loading it shows
    whether it is undamaged. If the run is on other machines, so are its checkpoints: then it is
    the last one that rank 0 recorded."""
    folder = run / "checkpoints"
    if os.path.isdir(run / HOSTS):  # noqa: PTH112  False also where nothing may be read
        saved = next(backwards(events_path(run, 0), Checkpoint), None)
        return saved.path.rpartition("/")[2] if saved is not None and saved.path else None
    try:
        names = sorted(e.name for e in os.scandir(folder) if e.name.startswith("step-"))
    except OSError:
        return None
    return next((n for n in reversed(names)
                 if os.path.exists(folder / n / "manifest.json")), None)  # noqa: PTH110


def processes(run: Path) -> list[int]:
    """The pids of this user's processes that have the run in their environment, in order. This
    process and its ancestors are left out."""
    wanted = b"GPU_PANEL_RUN=" + os.fsencode(run)
    above = set(procs.ancestors(os.getpid()))
    return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
                  if pid not in above and _belongs(pid, wanted))


def end(run: Path, first: signal.Signals = signal.SIGTERM, grace: float = GRACE, *,
        now: bool = False) -> None:
    """End the processes that `processes` finds, new ones included, and wait until they are gone:
    with the signal `first`, as a stop begins, and after `grace` seconds with SIGKILL. `now`:
    SIGKILL at once.

    Each process is held by a pidfd while it is checked, so that the signal can't reach another one
    with the same pid. Raises UserError, which names the processes that could not be ended.
    """
    wanted = b"GPU_PANEL_RUN=" + os.fsencode(run)
    kill = time.monotonic() + (0.0 if now else grace)
    asked: dict[int, int | None] = {}
    # A process that ends gives up its environment a moment before it is gone.
    while left := sorted({*processes(run), *(p for p, t in asked.items() if procs.alive(p, t))}):
        late = time.monotonic() - kill
        if late > 2 * GRACE:
            raise UserError(f"run {run.name}: these of its processes can't be ended: "
                            f"{', '.join(map(str, left))}")
        for pid in left if late >= 0 else set(left) - set(asked):
            asked[pid] = procs.start_ticks(pid)
            with contextlib.suppress(OSError):
                procs.send(pid, asked[pid], signal.SIGKILL if late >= 0 else first,
                           lambda found: _belongs(found, wanted))
        time.sleep(0.05)


def _belongs(pid: int, wanted: bytes) -> bool:
    try:
        environment = procs.environment(pid)
    except OSError:
        return False
    return wanted in environment and procs.start_ticks(pid) is not None


def _step_in(path: Path) -> int | None:
    """The step of the last event that has one, from the end of the file."""
    for event in backwards(path, Step, Phase, End, within=END):
        step = event.steps if isinstance(event, End) else event.step
        if step:
            return step
    return None
