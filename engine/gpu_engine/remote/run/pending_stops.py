"""Hosts that could not be told that their run was stopped: the run has ended here, and they are
told as soon as they can be reached.

The process that held the run together does so after it has let the run's lock go. While there is
somebody to be told, there is `hosts/owed`, locked by that process: if it is gone, the next command
or the panel starts it again (`launch.reattach`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside, locked, open_inside, take_lock
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.channel import Refused, Unreachable, open_channel
from gpu_engine.remote.reach.protocol import BadMessage
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.link import ANSWERS
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State

FILE = f"{parts.FOLDER}/owed"
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
"""Seconds before they are tried again, doubled each time."""
_DAY = 24 * 3600.0
"""Seconds after which a process gives up; the next command starts another."""


def sentence(hosts: Sequence[str]) -> str:
    """What a stopped run says of hosts that could not be told."""
    one = len(hosts) == 1
    return (f"{', '.join(hosts)} can't be reached: what runs there is stopped as soon as "
            f"{'it' if one else 'they'} can be")


def begin(run: Path) -> None:
    """Note that there are hosts to be told. Raises OSError."""
    os.close(open_inside(run, FILE, os.O_RDWR | os.O_CREAT))


def left(run: Path) -> bool:
    """Whether hosts of the run have still to be told, and nobody is about it."""
    file = run / FILE
    return file.exists() and locked(file) is False and any(p.to_stop for p in parts.read(run))


def deliver(run: Run, lock: int) -> None:
    """Until all have been told, or the run has begun another attempt. `lock`: the descriptor that
    holds the run's lock, which is let go. Raises OSError."""
    owed, end = [p for p in parts.read(run.path) if p.to_stop], time.monotonic() + _DAY
    if not owed:
        return
    own = open_inside(run.path, FILE, os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    os.close(lock)
    pause = _PAUSE
    while owed := [p for p in owed if not _delivered(run, p)]:
        if time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    (run.path / FILE).unlink(missing_ok=True)
    os.close(own)


def _delivered(run: Run, part: Part) -> bool:
    """Whether nothing is owed to this host any more."""
    assert part.run is not None
    if _now(run, part) is None:
        return True
    try:
        with open_channel(parts.host_of(run.path, part)) as way:
            lock = open_inside(run.path, "lock", os.O_RDWR)
            try:
                # Another attempt, which would have the lock, must not be what is stopped.
                if not take_lock(lock):
                    return True
                known = _now(run, part)
                if known is not None:
                    way.ask(protocol.Stop(part.run, False), seconds=ANSWERS)
                    _note(run, known)
            finally:
                os.close(lock)
    except Refused:  # it has no such run any more
        known = _now(run, part)
        if known is not None:
            _note(run, known)
    except (Unreachable, UserError, BadMessage, OSError):
        return not run.path.is_dir()
    return True


def _now(run: Run, part: Part) -> Part | None:
    """The part as it is now; None where nothing is owed to it."""
    return next((p for p in parts.read(run.path) if p.to_stop
                 and (p.host, p.run, p.attempt) == (part.host, part.run, part.attempt)), None)


def _note(run: Run, part: Part) -> None:
    parts.write(run.path, replace(part, to_stop=False, problem=None, since=None,
                                  heard=time.time()))
    state = State.from_dict(json_inside(run.path, "state.json"))
    if state is not None and state.state == "stopped":
        still = [p.host for p in parts.read(run.path) if p.to_stop]
        run.write_state(replace(state, reason=sentence(still) if still else
                                f"{part.host} was told at {time.strftime('%H:%M:%S')}"))
