"""What Linux tells of a process in /proc, and which process is meant by a pid: a pid alone does not
say, as pids are used again.

Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Stat(NamedTuple):
    """What /proc/PID/stat tells of a process: proc_pid_stat(5)."""

    name: str
    """The program's file name, cut to 15 characters."""
    state: str
    """One letter: "R" runs, "S" sleeps, "D" waits in the kernel, "T" stopped, "Z" zombie, ..."""
    parent: int
    """Pid of the parent."""
    cpu_ticks: int
    """Processor time that all its threads have used, in clock ticks."""
    start_ticks: int
    """When it started, in clock ticks since boot."""
    resident_pages: int
    """Memory that it holds, in pages."""

    @property
    def ended(self) -> bool:
        """A zombie has ended: nothing of it runs any more."""
        return self.state in "ZX"


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """What the kernel tells of `pid` now. Raises OSError, ProcessLookupError among them, where
    there is no such process or its file can't be opened."""
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    head, _, rest = text.rpartition(")")  # the name may hold spaces and brackets
    fields = rest.split()
    return Stat(head.partition("(")[2], fields[0], int(fields[1]),
                int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21]))


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """`read_stat`, or None where nothing can be read."""
    try:
        return read_stat(pid, proc)
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None where it is gone or a zombie."""
    found = stat(pid)
    return None if found is None or found.ended else found.start_ticks


def environment(pid: int, proc: Path = PROC) -> list[bytes]:
    """The environment that `pid` was started with, as b"NAME=value". Raises OSError where it is
    gone or somebody else's."""
    return (proc / str(pid) / "environ").read_bytes().split(b"\0")


def arguments(pid: int, proc: Path = PROC) -> list[bytes]:
    """The command line of `pid`, a word each; a kernel thread and a zombie have none. Raises
    OSError where it is gone."""
    return (proc / str(pid) / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")


def program(pid: int) -> str:
    """The file name of the program that a process runs, of a script its interpreter's; "" where it
    is not known."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def boot_id() -> str | None:
    """This boot's id: start ticks of two boots can't be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def alive(pid: int | None, ticks: int | None) -> bool:
    """Whether the process known by pid and start ticks still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def send(pid: int, ticks: int | None, number: int,
         check: Callable[[int], bool] = lambda pid: True) -> bool:
    """Signal the process known by pid and start ticks; False where it has ended meanwhile, or
    `check` says no.

    A descriptor holds the process while it is checked, so that the signal can't reach another one
    that has got its pid. Raises PermissionError where it is somebody else's.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3
        fd = None
    try:
        if not alive(pid, ticks) or not check(pid):
            return False
        if fd is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def suspended(pid: int) -> bool:
    """Whether the process was stopped by a signal (SIGSTOP, ctrl+z) and waits for SIGCONT."""
    found = stat(pid)
    return found is not None and found.state == "T"


def cpu_ticks(pid: int) -> int | None:
    """Processor time that all threads of `pid` have used, in clock ticks; None if it is gone."""
    found = stat(pid)
    return None if found is None else found.cpu_ticks
