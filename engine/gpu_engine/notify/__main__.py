"""The process that tells of one run: it follows the run, and ends when the run's end was told.
`python -m gpu_engine.notify RUN_DIR`, started by `gpu_engine.launching.notifier`.

It is no part of the run. Nothing waits for it, it writes into no file that others write, and if it
is killed the run goes on and nobody is told. notify.toml is read anew for each message, so an
entry that is changed while a run trains counts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked
from gpu_engine.notify.journal import NOT_WANTED, SENT, SWEEP_FILE, WITH_SWEEP, Journal
from gpu_engine.notify.watch import Happened, RunWatch, where
from gpu_engine.places.verbs import Followed
from gpu_engine.runs import notes, sweep, waiting
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member

if TYPE_CHECKING:
    from gpu_engine.notify.messages import Event, Message
    from gpu_engine.sweep.group import Group

EVERY = 1.5
"""Seconds between two readings of a run."""
_ASK_EVERY = 10.0
"""Seconds between two questions to the place of a run that has not ended."""


def follow(run: Run) -> None:
    """Tell of `run` until it has ended and that was told. Returns at once if another process does.

    A run can be started again while its end is being told, and the process that this start brings
    then finds the lock taken and ends. So whoever lets go of the lock looks once more.
    """
    journal, told = Journal(run.path), frozenset[str]()
    while journal.acquire():
        watch = RunWatch(run, told | journal.keys(), goes_on=Followed(run, _ASK_EVERY))
        try:
            _follow(watch, journal)
        finally:
            journal.release()
        if watch.is_over():
            return
        told = watch.told


def _follow(watch: RunWatch, journal: Journal) -> None:
    while True:
        happened = watch.next_event()
        if happened is not None:
            member = sweep.read(watch.run.path)
            if member is None or happened.event == "stalled":
                _send_of_run(watch.run, happened, journal)
            else:
                _send_of_member(watch.run, member, happened, journal)
        elif watch.is_over():
            return
        time.sleep(EVERY)


def _send_of_run(run: Run, happened: Happened, journal: Journal) -> None:
    state, now = happened.state, time.time()

    def message(machine: str) -> Message:
        from gpu_engine.notify import messages

        return messages.of_run(
            happened.event, state, happened.progress, machine=machine, on=where(run),
            name=notes.read(run.path).name or state.name, why=happened.why, now=now)

    _send(happened.event, state.took(now), message, happened.key, journal)


def _send_of_member(run: Run, member: Member, happened: Happened, journal: Journal) -> None:
    """Of a sweep's runs the first that fails is told of at once, and then the end of all, once: by
    whichever of their processes sees that none is left and has the lock first."""
    try:
        found, over = _sweep_of(run, member)
    except UserError:  # it was removed meanwhile
        return
    attempts = sum(one.state().attempt for one, _ in found.members)
    # Members that are tried again end again, and so does their sweep.
    key = f"ended {len(found.members)} {attempts}" if over \
        else f"{happened.event} {happened.state.attempt}"
    shared = Journal(found.members[0][0].path, SWEEP_FILE)
    # Killed while it tells, it lets go of the lock without its line: the next one tells it then.
    ours = (over or happened.event in ("failed", "lost")) and shared.acquire(wait=True)
    try:
        if not ours or key in shared.keys():  # noqa: SIM118  it is no dict
            journal.write(happened.key, "anybody", WITH_SWEEP)
            return
        if over:
            _send_of_sweep(found, happened.key, journal)
        else:
            _send_of_run(run, happened, journal)
        shared.write(key, run.id, SENT)
    finally:
        shared.release()


def _sweep_of(run: Run, member: Member) -> tuple[Group, bool]:
    """The sweep of this run, which has ended; and whether all of it has. Raises UserError."""
    from gpu_engine.sweep import group, kept  # late: most runs are in none

    lock = waiting.sweep_lock(waiting.folder_beside(run.path), member.sweep)
    while True:
        found = group.find(member.sweep)
        if any(one.state().live for one, _ in found.members):
            return found, False
        if not locked(lock):
            return found, not kept.asks(lock.parent, member.sweep)
        time.sleep(EVERY)  # with run.halving its process may have some go on


def _send_of_sweep(found: Group, key: str, journal: Journal) -> None:
    from gpu_engine.sweep import group

    states, now = {run.state().state for run, _ in found.members}, time.time()
    event: Event = "finished" if "completed" in states else \
        "failed" if states & {"failed", "lost"} else "stopped"

    def message(machine: str) -> Message:
        from gpu_engine.notify import messages

        return messages.of_sweep(event, found.id, found.name, group.outcome(found),
                                 machine=machine, seconds=now - found.begun, now=now)

    _send(event, now - found.begun, message, key, journal)


def _send(event: Event, took: float | None, message: Callable[[str], Message], key: str,
          journal: Journal) -> None:
    """Send what `message` makes, told this machine's name, to all who want to know of `event`."""
    # Half of the memory that this process may come to need, and only now.
    import socket

    from gpu_engine.notify import config, send

    try:
        entries = config.read()
    except UserError as err:
        journal.write(key, "anybody", str(err))
        return
    wanted = [to for to in entries if event in to.on and (took is None or took >= to.min_seconds)]
    if not wanted:
        journal.write(key, "nobody", NOT_WANTED)
        return
    for to, result in send.deliver_all(wanted, message(socket.gethostname())):
        journal.write(key, to.name, result or SENT)


def main(argv: list[str]) -> int:
    """Tell of the run in the folder `argv[1]`, with low priority; what it writes is private."""
    run = Run(Path(argv[1]))
    os.umask(0o077)
    os.nice(10)
    follow(run)
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for an endpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv))
