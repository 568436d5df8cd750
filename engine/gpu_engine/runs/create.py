"""Making a run folder so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_atomic, write_json
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.state import State

_NEW = ".new-"
_STALE = 60.0
"""Seconds: the folder may be on a disk that other machines share, whose pids are unknown here."""


def make(path: Path, name: str, spec_toml: str, plan: LaunchPlan) -> int:
    """Make the folder under another name, and give it its own when it is whole: until then a
    reader would see a run without a state. Returns the descriptor that holds its lock.

    Raises OSError, with nothing left behind; ENOTEMPTY where there is such a run.
    """
    new = path.with_name(f"{_NEW}{path.name}-{os.getpid()}")
    fd = None
    try:
        new.mkdir(mode=0o700)
        (new / "ranks").mkdir(mode=0o700)
        fd = open_lock(new)
        fcntl.flock(fd, fcntl.LOCK_EX)
        write_atomic(new / "spec.toml", spec_toml)
        write_json(new / "plan.json", plan.to_dict())
        state = State("queued", path.name, name, time.time(), boot=procs.boot_id())
        write_json(new / "state.json", state.to_dict())
        new.rename(path)
    except OSError:
        if fd is not None:
            os.close(fd)
        shutil.rmtree(new, ignore_errors=True)
        raise
    return fd


def sweep(folder: Path) -> None:
    """Remove what launchers left behind that were killed while making a run."""
    for path in folder.glob(f"{_NEW}*"):
        pid = path.name.rpartition("-")[2]
        with contextlib.suppress(OSError):
            if not (pid.isdigit() and procs.start_ticks(int(pid))) \
                    and time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)


def open_lock(folder: Path) -> int:
    """The lock's descriptor, above the three that a child gets anew: a program started with its
    stdin closed would hand over /dev/null instead. Raises OSError."""
    low = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def cwd() -> str:
    """The folder that the ranks are to run in. Raises UserError where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError as err:
        raise UserError(f"the working directory is gone: {err.strerror}; change to another, as "
                        "the ranks run in it") from None
