"""Starting, knowing and ending processes on Linux.

Whatever happens to the supervisor, nothing it started may live on: each child carries a
parent-death signal, and the supervisor is a subreaper, so that what a child leaves behind
becomes its own to end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common import procs

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


@dataclass(slots=True)
class Child:
    """A process that the supervisor started."""

    ranks: tuple[int, ...]
    role: str
    """"rank" or "launcher"."""
    pid: int
    ticks: int | None
    popen: subprocess.Popen[bytes] = field(repr=False)
    status: int | None = None
    """Exit status; minus the signal's number; None while it runs."""
    ended: float | None = None
    """Unix seconds."""
    killed: bool = False
    """Whether we ended it: then its status says nothing about it."""

    @property
    def running(self) -> bool:
        return self.status is None

    def signal(self, number: signal.Signals) -> None:
        if self.running:  # not reaped, so the pid is still its own
            os.kill(self.pid, number)


def become_subreaper() -> None:
    """Orphans below this process become its children (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_many_files() -> None:
    """Raise our own limit of open files as far as it goes; children get back the one they had."""
    global _files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _files = (soft, hard)
    except (OSError, ValueError):
        pass


_files: tuple[int, int] | None = None


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path,
          cores: Sequence[int], ranks: tuple[int, ...], role: str) -> Child:
    """Start one process in a session of its own, output to `log`, dying with this one.

    Call it from the main thread. Raises OSError where the program or folder is missing.
    """
    parent = os.getpid()

    def arm() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died in between: the signal will never come
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # we block some for sigtimedwait
        if _files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, _files)
        if cores:
            try:
                os.sched_setaffinity(0, cores)
            except OSError:
                pass  # the cores went away since planning: run wherever the kernel lets us

    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        popen = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd,
            start_new_session=True, preexec_fn=arm)
    finally:
        os.close(fd)
    return Child(ranks, role, popen.pid, procs.start_ticks(popen.pid), popen)


def reap(children: Sequence[Child]) -> list[Child]:
    """Collect every process that ended, adopted ones too; returns the ended children."""
    ended = []
    by_pid = {c.pid: c for c in children if c.running}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        child = by_pid.get(pid)
        if child is not None:
            child.status = os.waitstatus_to_exitcode(status)
            child.popen.returncode = child.status  # Popen would wait for it again
            child.ended = time.time()
            ended.append(child)


def table() -> dict[int, tuple[int, bool]]:
    """(parent, whether it is a zombie) of every process that can be seen, by pid. Raises OSError
    where no file can be opened."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = procs.read_stat(int(entry.name))
        except OSError as err:
            if err.errno in (errno.EMFILE, errno.ENFILE):
                raise  # "nothing there" would be a lie
            continue
        found[int(entry.name)] = stat.parent, stat.ended
    return found


def descendants(root: int) -> list[int]:
    """Pids below `root`, children before grandchildren, zombies left out. Raises OSError where no
    file can be opened.

    What is below a zombie counts: one whose other threads still run keeps its children.
    """
    known = table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += [pid for pid in below if not known[pid][1]]
        queue += below
    return found


def kill_tree(children: Sequence[Child], seconds: float = 5.0) -> list[int]:
    """SIGKILL all that is below this process, a subreaper, again until it has no child.

    One look that finds nothing is not enough: what changes its parent just then is in neither
    place. Returns the pids that could not be ended (a process in uninterruptible sleep, say).
    """
    end = time.monotonic() + seconds
    while True:
        try:
            left = descendants(os.getpid())
        except OSError:  # no file can be opened any more; what we know by pid goes anyway
            left = [c.pid for c in children if c.running]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)  # ours and not reaped: the pid can't be another's
            except ProcessLookupError:
                continue
        reap(children)
        if _childless():
            return []
        if time.monotonic() > end:
            return left
        time.sleep(0.02)


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False
