"""Starting, finding and ending the supervisor's processes.

Nothing that the supervisor has started may outlive it. So each child carries a parent-death signal,
and the supervisor is a subreaper: the orphans of its children become its own children.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.events.paths import open_to_append

STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
"""What asks the supervisor to end the run. SIGINT is a person's; the others may come several times
for one request."""
_KILLING = 5.0
"""Seconds for which SIGKILL is sent again."""
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
    """Its exit status, negative if a signal ended it; None while it runs."""
    ended: float | None = None
    """When it ended, Unix seconds."""
    asked: bool = False
    """Whether we have sent it a signal: if that ended it, this is no failure of its own."""
    killed: bool = False
    """Whether we killed it; its status then says nothing about it."""

    @property
    def running(self) -> bool:
        """Whether it has not been seen to end yet."""
        return self.status is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.running:  # not reaped yet, so the pid can't be another's
            self.asked = True
            os.kill(self.pid, number)


def become_subreaper() -> None:
    """Make orphans below this process its own children (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process `number` when the one that has just started it, `parent`,
    dies (prctl(2))."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died just before: the signal will never come
        os._exit(1)


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path, umask: int,
          cores: Sequence[int], ranks: tuple[int, ...], role: str, session: bool) -> Child:
    """Start a process in a process group of its own, as a shell starts a job, with its output in
    `log`. The kernel kills it when this process dies. With `session` it has a session of its own,
    and so its own share of busy cores (autogroups, sched(7)); `os.setpgrp()` fails in it.

    Must be called from the main thread. Raises OSError if the program or a folder is missing.
    """
    parent = os.getpid()

    def arm() -> None:
        end_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # we block some for sigtimedwait
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where a shell started us with `&`
        if cores:
            try:
                os.sched_setaffinity(0, cores)
            except OSError:
                pass  # the cores are offline since the run was planned: use any

    fd = open_to_append(log)
    try:
        popen = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd,
            umask=umask, preexec_fn=arm, start_new_session=session,
            process_group=None if session else 0)
    finally:
        os.close(fd)
    return Child(ranks, role, popen.pid, procs.start_ticks(popen.pid), popen)


def reap(children: Sequence[Child], orphans: dict[int, int] | None = None) -> list[Child]:
    """Reap every process that has ended, adopted orphans too. Returns those of `children`; the exit
    statuses of the others are put into `orphans`, by pid."""
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
        elif orphans is not None:
            orphans[pid] = os.waitstatus_to_exitcode(status)


def process_table() -> dict[int, tuple[int, bool]]:
    """(pid of the parent, whether it is a zombie) of every visible process, by pid. Raises OSError
    if no file can be opened."""
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


def wait_for_signal(numbers: Collection[int], seconds: float) -> tuple[int, int] | None:
    """(number, sender's pid) of the next of these signals, which are blocked; None if there is none
    within so many seconds. Raises OSError."""
    # To a process that is suspended meanwhile, sigtimedwait may tell of a signal that never came,
    # once Python finds the time to be over: it is called only where there is no time to wait.
    if not procs.readable(_pending(frozenset(numbers)), seconds):
        return None
    got = signal.sigtimedwait(numbers, 0)
    return None if got is None else (got.si_signo, got.si_pid)


@functools.cache
def _pending(numbers: frozenset[int]) -> int:
    """A file that can be read as long as one of these signals is pending (signalfd(2)). Raises
    OSError."""
    wanted = ctypes.create_string_buffer(128)  # a sigset_t
    _libc.sigemptyset(wanted)
    for number in numbers:
        _libc.sigaddset(wanted, int(number))
    if (fd := _libc.signalfd(-1, wanted, os.O_CLOEXEC)) < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd


def asked_to_end() -> bool:
    """Whether a signal to stop, which are blocked, is pending."""
    return bool(signal.sigpending() & STOPS)


def descendants(root: int) -> list[int]:
    """The pids below `root`, children before grandchildren, without zombies, but with what is below
    them: one whose other threads still run keeps its children. Raises OSError if no file can be
    opened."""
    known = process_table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += [pid for pid in below if not known[pid][1]]
        queue += below
    return found


def kill_tree(children: Sequence[Child], orphans: dict[int, int] | None = None) -> list[int]:
    """Send SIGKILL to everything below this process, a subreaper, until it has no child left, as a
    process that gets a new parent just then may be missed. `orphans`: as in `reap`; a process that
    has just crashed may still have threads, and can't be reaped before they have ended. Returns the
    pids that could not be ended, for example in uninterruptible sleep."""
    killed, ended = set[int](), dict[int, int]()
    end = time.monotonic() + _KILLING
    if childless():  # as after nearly all runs; nothing is below us
        return []
    while True:
        try:
            left = descendants(os.getpid())
        except OSError:  # no file can be opened: kill at least our own children
            left = [c.pid for c in children if c.running]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid can't be another's
            except ProcessLookupError:
                continue
            killed.add(pid)
        reap(children, ended)
        if orphans is not None:
            orphans.update((pid, ended[pid]) for pid in ended.keys() - killed)
        if childless():
            return []
        if time.monotonic() > end:
            return left
        time.sleep(0.02)


def childless() -> bool:
    """Whether this process has no child left, adopted ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False
