"""Which process is meant: a pid alone is not enough, as pids are used again.

Standard library only; Linux's /proc.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot (proc(5), stat field 22); None if gone.

    A zombie counts as gone: nothing of it runs any more.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def program(pid: int) -> str:
    """The name of the program that a process runs, a script's interpreter; "" where unknown."""
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

    It is held by a descriptor while it is looked at, so that the signal can't reach another that
    has taken the pid over. Raises PermissionError where it is somebody else's.
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
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def cpu_ticks(pid: int) -> int | None:
    """Processor time that all threads of `pid` have used, in clock ticks; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
