"""Other machines by ssh. Each host has its part of a run, with a supervisor of its own; here a
process holds them together and mirrors what they record (`remote/run`).

That process may end, and the hosts go on: the next command, or the panel, starts it again. The
run's lock keeps two from doing so: the one that gets it hands it to the new process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import telling
from gpu_engine.common.files import locked, open_inside, take_lock
from gpu_engine.devices.records import Inventory
from gpu_engine.events.notices import NOT_FETCHED
from gpu_engine.launching import launcher, logind, notifier
from gpu_engine.launching.launcher import Prepared
from gpu_engine.plan.check import chooses_host
from gpu_engine.remote.run import freest, parts, queries, rest
from gpu_engine.remote.run import prepare as preparing
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec.host_names import SLURM
from gpu_engine.spec.schema import RunSpec

_AGAIN = 60.0
"""Seconds between two tries to fetch the rest of a run that nobody asks for."""


def devices(spec: RunSpec) -> Inventory:
    """Where one of several machines is meant, those of the one that may have most."""
    if not chooses_host(spec):
        return launcher.devices(spec)
    spec, asked = freest.asked_of(spec)
    return freest.expected(freest.look(asked), spec.devices.pick or 1)


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            only_plan: bool = False, in_sweep: bool = False, **_: object) -> Prepared:
    """`verbs.prepare`. With run.sync each host is sent the code that it lacks, as its checks run in
    that folder; with `only_plan` it is sent nothing, and checks all but the task."""
    def there(spec: RunSpec) -> Prepared:
        return Prepared(*preparing.prepare(spec, base=base, cwd=cwd, send=not only_plan,
                                           in_sweep=in_sweep))

    chosen = wants = None
    if chooses_host(spec):
        prepared, chosen, wants = freest.resolve(spec, there, only_plan=only_plan)
    else:
        prepared = there(spec)
    # It is no job: `verbs.meant_by` has said so.
    named_so = any(host.partition(":")[0] == SLURM for host in spec.devices.hosts or ())
    return replace(prepared, wants=wants, plan=launcher.warned(
        replace(prepared.plan, chosen=chosen),
        "slurm is a host of yours, and means it; Slurm itself is devices.hosts=slurm:PARTITION"
        if named_so else None, notifier.doubt()))


def start(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = ()) -> Run:
    """`verbs.start`."""
    def keep(run: Run) -> None:
        parts.write_instead(run.path, prepared.parts)
        if prepared.wants is not None:
            waiting.write(run.path, waiting.Entry(
                **asdict(prepared.wants), submitted=time.time(), number=0,
                host=socket.gethostname(), folder=run.cwd(), at_once=True))

    return launcher.start(prepared, tell=tell, tags=tags, keep=keep)


def again(run: Run, spec: RunSpec, start: str) -> Prepared:
    """`launcher.again`: each part continues where it is."""
    trust.require_started(run.path)
    prepared = Prepared(*preparing.prepare_again(run, spec, start))
    launcher.open_again(run, prepared,
                        keep=lambda: parts.write_instead(run.path, prepared.parts))
    return prepared


def look(run: Run, wait: float = 0.0) -> bool:
    """If the run has not ended and has no process here, start one; returns whether that had to be
    done. If it has ended, and a host was away then, what that has of it is fetched, for which
    `wait` seconds are waited. Raises UserError."""
    if run.supervised() or not trust.started_here(run.path):
        return False
    if _left(run) is None:
        _fetch(run, wait)
        return False
    _follow(run)
    return True


def stop(run: Run, *, now: bool) -> None:
    """`verbs.stop`. Hosts that were away when it was stopped are asked again."""
    look(run)
    if run.state().live or not queries.stop_left(run, now=now):
        run.stop(now=now)


def goes_on(run: Run) -> bool:
    """`verbs.goes_on`."""
    return any(part.to_stop for part in parts.read(run.path))


def _follow(run: Run) -> None:
    """Start the process that follows the run, unless somebody else does. Raises UserError."""
    with telling(f"run {run.id} can't be reattached"):
        lock = lock_of(run.path)
        recorded = _left(run) if take_lock(lock) else None
        if recorded is None or not parts.read(run.path):
            os.close(lock)
            return
        try:
            # Whoever wants to stop it waits for the new process's id.
            run.write_state(replace(recorded, pid=None, ticks=None, boot=procs.boot_id()))
        except OSError:
            os.close(lock)
            raise
    launcher.supervise(run, lock)


def _fetch(run: Run, wait: float) -> None:
    """Where nobody waits for it, once a minute."""
    path = run.path / rest.LOCK
    if all(one.code != NOT_FETCHED for one in run.state().warnings):
        return
    with suppress(OSError):
        if wait == 0 and time.time() - path.stat().st_mtime < _AGAIN:
            return
    with telling(f"what the hosts of run {run.id} have can't be fetched"):
        lock = lock_of(run.path, rest.LOCK)
        try:
            if take_lock(lock):  # else somebody else does it
                os.utime(lock)
                log = open_inside(run.path, "supervisor.log", os.O_WRONLY | os.O_APPEND)
                logind.start(log, "gpu_engine.remote.run", str(run.path), str(lock), "rest",
                             pass_fds=(lock,))
        finally:
            os.close(lock)
    end = time.monotonic() + wait
    while time.monotonic() < end and locked(path):
        time.sleep(0.05)


def _left(run: Run) -> State | None:
    """The recorded state of a run that has not ended, else None."""
    recorded = run.recorded()
    return recorded if recorded is not None and recorded.live else None
