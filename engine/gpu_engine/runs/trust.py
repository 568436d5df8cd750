"""Which run folders are acted on, and which processes are a run's (docs/trust.md).

A run folder is data: somebody may have sent it. So nothing in it says of itself that it may be
acted on. The kernel says whose folder it is and what a process holds open, and a list outside of
the folders says which runs this home has started:

    $GPU_PANEL_HOME/started/3f2a      {"inode": …, "changed": …, "hosts": […]}

Standard library only: a rank imports this.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_json, reason, user_name, write_json
from gpu_engine.common.paths import home, private_folder, runs_folder


def why_not_ours(run: Path) -> str | None:
    """Why the folder `run` is only shown: "it belongs to alice"; None if it is this user's and
    nobody else can write to it, or if it is not there."""
    try:
        found = run.lstat()
    except FileNotFoundError:
        return None
    except OSError as err:
        return f"it can't be looked at: {reason(err)}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to {other_owner(run)}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it; chmod go-w {run} ends that"
    return None


def whose(path: Path) -> str:
    """"; it belongs to alice", or "" if it is the current user's."""
    owner = other_owner(path)
    return f"; it belongs to {owner}" if owner else ""


def other_owner(run: Path) -> str | None:
    """The name of the user whose folder it is; None if it is this one's, or is not there."""
    try:
        uid = run.lstat().st_uid
    except OSError:
        return None
    return None if uid == os.geteuid() else user_name(uid)


def require_ours(run: Path) -> None:
    """Raises UserError if the folder `run` is another user's, or others can write to it."""
    why = why_not_ours(run)
    if why is not None:
        raise UserError(f"run {run.name} is only shown: {run}: {why}")


def note_started(run: Path) -> None:
    """Put the run in the folder `run` on the list of those that this home has started. One outside
    of the runs' folder is on no list. Raises OSError."""
    if run.parent != runs_folder():
        return
    entry = _entry(run)
    private_folder(entry.parent)
    write_json(entry, _made(run), settled=False)


def forget_started(run: Path) -> None:
    """Take the run off the list. Raises OSError."""
    if run.parent == runs_folder():
        _entry(run).unlink(missing_ok=True)


def started_here(run: Path) -> bool:
    """Whether this home has started the run in the folder `run`, and the folder is this user's
    alone. Another folder in its place, as one that was unpacked there, is not the run."""
    return _started(run) and why_not_ours(run) is None


def require_started(run: Path) -> None:
    """Raises UserError unless `started_here`."""
    require_ours(run)
    if not _started(run):
        raise UserError(f"run {run.name} is only shown: it was not started from here, so what its "
                        "folder says of other machines, jobs and turns is not acted on")


def belongs(pid: int, run: Path) -> bool:
    """Whether the process `pid` is part of the run in the folder `run`, by what the kernel tells
    of it: it was started with the run in its environment, or has the run's lock or a rank's events
    open. The folder's own word for it does not count."""
    try:
        if b"GPU_PANEL_RUN=" + os.fsencode(run) in procs.environment(pid):
            return True
        ranks = run / "ranks"
        events = () if ranks.is_symlink() else ranks.glob("*.jsonl")
        ours = {found for found in map(_identity, (run / "lock", *events))
                if found is not None}
        return any(_opened(fd) in ours for fd in os.scandir(procs.PROC / str(pid) / "fd"))
    except OSError:  # it has ended, or is another user's
        return False


def _opened(fd: os.DirEntry[str]) -> tuple[int, int] | None:
    try:
        found = fd.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _identity(path: Path) -> tuple[int, int] | None:
    """(device, inode) of a file that has this one name; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return (found.st_dev, found.st_ino) if plain else None


def _entry(run: Path) -> Path:
    return home() / "started" / run.name


def _started(run: Path) -> bool:
    """Whether it is on the list."""
    entry = read_json(_entry(run)) if run.parent == runs_folder() else None
    try:
        return isinstance(entry, dict) and _made(run).items() <= entry.items()
    except OSError:
        return False


def _made(run: Path) -> dict[str, int]:
    """What tells the folder from another one in its place, be it a copy: which file its lock is,
    and when the kernel saw that change last, which was when it was made. Raises OSError."""
    lock = (run / "lock").lstat()
    return {"inode": lock.st_ino, "changed": lock.st_ctime_ns}
