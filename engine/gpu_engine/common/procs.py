"""Processes as Linux shows them in /proc, and signals that reach the right one; exit statuses in
words, and waiting for what a process writes.

The kernel reuses pids, so a process is identified by its pid and its start time together.
Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here; see proc_pid_stat(5)."""

    name: str
    """The name of the program's file, cut to 15 characters."""
    state: str
    """One letter: "R" runs, "S" sleeps, "D" waits in the kernel, "T" stopped, "Z" zombie; …"""
    parent: int
    """Pid of the parent."""
    cpu_ticks: int
    """Processor time that all its threads have used, in clock ticks."""
    start_ticks: int
    """When it started, in clock ticks since boot."""
    resident_pages: int
    """Resident memory, in pages."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended: it is a zombie, or gone but for its entry."""
        return self.state in "ZX"


def status(pid: int | str, field: str) -> str:
    """A field of /proc/PID/status: "VmHWM" is "1234 kB"; "" if it can't be read."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:
        return ""
    return text.partition(f"\n{field}:")[2].partition("\n")[0].strip()


def moved(pid: int | str, *fields: str) -> int:
    """The sum of these fields of /proc/PID/io, in bytes; 0 if they can't be read."""
    try:
        text = (PROC / str(pid) / "io").read_text()
        found = dict(line.split(": ") for line in text.splitlines())
        return sum(int(found[field]) for field in fields)
    except (OSError, ValueError, KeyError):
        return 0


def ignores(pid: int, number: int) -> bool:
    """Whether `pid` ignores this signal; False if that is not known."""
    return _has(status(pid, "SigIgn"), number)


def catches(pid: int, number: int) -> bool:
    """Whether `pid` has a handler for this signal; False if that is not known."""
    return _has(status(pid, "SigCgt"), number)


def _has(mask: str, number: int) -> bool:
    return bool(int(mask or "0", 16) >> (number - 1) & 1)


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """Read /proc/PID/stat. Raises OSError (ProcessLookupError is one) if there is no such process
    or the file can't be read."""
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    head, _, rest = text.rpartition(")")  # the name may contain spaces and brackets
    fields = rest.split()
    return Stat(head.partition("(")[2], fields[0], int(fields[1]),
                int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21]))


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The same as `read_stat`, but None if it can't be read."""
    try:
        return read_stat(pid, proc)
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if it is gone or a zombie."""
    found = stat(pid)
    return None if found is None or found.ended else found.start_ticks


def environment(pid: int, proc: Path = PROC) -> list[bytes]:
    """The environment that `pid` was started with, as a list of b"NAME=value". Raises OSError if
    it is gone or belongs to another user."""
    return (proc / str(pid) / "environ").read_bytes().split(b"\0")


def arguments(pid: int, proc: Path = PROC) -> list[bytes]:
    """The command line of `pid`, one item per argument; a kernel thread and a zombie have an empty
    one. Raises OSError if the process is gone."""
    return (proc / str(pid) / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")


def program(pid: int) -> str:
    """The file name of the program that `pid` runs (for a script, its interpreter); "" if it is
    not known."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def boot_id() -> str | None:
    """The id of this boot, or None if it can't be read. Start times are ticks since boot, so they
    are only comparable within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def alive(pid: int | None, ticks: int | None) -> bool:
    """Whether the process with this pid and this start time still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def send(pid: int, ticks: int | None, number: int,
         check: Callable[[int], bool] = lambda pid: True) -> bool:
    """Send signal `number` to the process with this pid and this start time. Returns False, without
    a signal, if it has ended or `check(pid)` says no. It is held by a pidfd while it is checked, so
    that the signal can't reach another process that has got the same pid since. Raises
    PermissionError if it belongs to another user."""
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


def children(pid: int) -> Iterator[int]:
    """The processes that the process has started; none where that can't be told."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())
    except OSError:  # it has ended; or not Linux
        return


def ancestors(pid: int) -> Iterator[int]:
    """`pid` and the processes above it, the nearest first, as far as they can be seen."""
    while pid > 0:
        yield pid
        found = stat(pid)
        pid = 0 if found is None else found.parent


def cpu_ticks(pid: int) -> int | None:
    """Processor time that all threads of `pid` have used, in clock ticks; None if `pid` is gone."""
    found = stat(pid)
    return None if found is None else found.cpu_ticks


def turns(task: int | str) -> tuple[float, int]:
    """Seconds for which a thread, as "PID/task/TID", or the first one of a process has waited for a
    core, and how often it was given one; (0.0, 0) if that is not known."""
    try:
        _, waited, given = (PROC / str(task) / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0
    return int(waited) / 1e9, int(given)


def describe_exit(status: int) -> str:
    """The status, negative if a signal ended the process: "exited with 3", "killed by SIGKILL"."""
    return f"exited with {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """The signal's name, "SIGKILL", or "signal 77" if this machine has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def readable(fd: int, seconds: float) -> bool:
    """Whether `fd` has something to read, or its end, within `seconds`; also in a process with more
    than 1,024 open files, where `select` refuses. Raises OSError."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    found = poll.poll(max(seconds, 0) * 1000)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(f"file {fd} is not open")
    return bool(found)
