"""The process that tells of one run: it follows the run, and ends when the run's end was told.
`python -m gpu_engine.notify RUN_DIR`, started by `gpu_engine.launching.notifier`.

It is no part of the run. Nothing waits for it, it writes into no file that others write, and if it
is killed the run goes on and nobody is told. notify.toml is read anew for each message, so an
entry that is changed while a run trains counts.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpu_engine.notify.journal import NOT_WANTED, SENT, Journal
from gpu_engine.notify.watch import Happened, RunWatch, where
from gpu_engine.runs import job, notes
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State

EVERY = 1.5
"""Seconds between two readings of a run."""
_SLURM_EVERY = 30.0
"""Seconds between two questions to Slurm about a job that has not ended."""


def follow(run: Run, goes_on: Callable[[State], bool] | None = None) -> None:
    """Tell of `run` until it has ended and that was told. Returns at once if another process does.
    `goes_on`: as for `RunWatch`.

    A run can be started again while its end is being told, and the process that this start brings
    then finds the lock taken and ends. So whoever lets go of the lock looks once more.
    """
    journal, told = Journal(run.path), frozenset[str]()
    while journal.acquire():
        watch = RunWatch(run, told | journal.keys(), goes_on=goes_on)
        try:
            _follow(watch, journal)
        finally:
            journal.release()
        if watch.is_over():
            return
        told = watch.told


def _follow(watch: RunWatch, journal: Journal) -> None:
    asked = time.monotonic() - _SLURM_EVERY
    is_job = (watch.run.path / job.FILE).exists()
    while True:
        happened = watch.next_event()
        if happened is not None:
            _send(watch.run, happened, journal)
        elif watch.is_over():
            return
        if is_job and time.monotonic() - asked >= _SLURM_EVERY:
            asked = time.monotonic()
            from gpu_engine.slurm import watch as slurm

            slurm.refresh()
            continue
        time.sleep(EVERY)


def _send(run: Run, happened: Happened, journal: Journal) -> None:
    # Half of the memory that this process may come to need, and only now.
    import socket

    from gpu_engine.common.errors import UserError
    from gpu_engine.notify import config, messages, send

    try:
        entries = config.read()
    except UserError as err:
        journal.write(happened.key, "anybody", str(err))
        return
    now = time.time()
    took = happened.state.took(now)
    wanted = [to for to in entries if happened.event in to.on
              and (took is None or took >= to.min_seconds)]
    if not wanted:
        journal.write(happened.key, "nobody", NOT_WANTED)
        return
    named = notes.read(run.path).name or happened.state.name
    message = messages.of_run(happened.event, happened.state, happened.progress, name=named,
                              machine=socket.gethostname(), on=where(run), why=happened.why,
                              now=now)
    for to, result in send.deliver_all(wanted, message):
        journal.write(happened.key, to.name, result or SENT)


def main(argv: list[str]) -> int:
    """Tell of the run in the folder `argv[1]`, with low priority; what it writes is private."""
    run = Run(Path(argv[1]))

    @functools.cache
    def still_on():
        from gpu_engine.launching.reattach import StillOn  # late: few runs are on hosts

        return StillOn(run)

    os.umask(0o077)
    os.nice(10)
    follow(run, lambda state: still_on()(state))
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for an endpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv))
