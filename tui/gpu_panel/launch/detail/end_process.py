"""Sends a signal to one process of the person's own, as root to anybody's. No widgets; blocks for
moments.

A process is identified by pid and start time, which are read when the person is asked and again
right before each signal. The signal goes through a pidfd if the kernel has them, so that it can't
reach another process that got the same pid in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.devices.records import DeviceProcess

_TICK = os.sysconf("SC_CLK_TCK")
_OFF = 2.0
"""Seconds by which readings of one start time may differ: the boot time has whole seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """One certain process: its pid and its start time in clock ticks since boot."""

    pid: int
    ticks: int


class NotOurs(UserError):
    """The process is not one that may be ended from here."""

    title = "Can't end this process"


def examine(process: DeviceProcess, proc: Path = Path("/proc")) -> Target:
    """Check the process that the table shows, as it is now. Raises NotOurs with the reason."""
    pid = process.pid
    if not process.visible:
        raise NotOurs(f"Process {pid} is not visible from here: it runs in another "
                      "container or pid namespace. End it there.")
    ticks = procs.start_ticks(pid)
    if ticks is None:
        raise NotOurs(f"Process {pid} has ended already.")
    boot = _boot_time(proc)
    if process.started is not None and boot is not None \
            and abs(boot + ticks / _TICK - process.started) > _OFF:
        raise NotOurs(f"The process in the table has ended: {pid} is another process now.")
    target = Target(pid, ticks)
    _check_owner(target, process.user, proc)
    if pid in _above(proc):
        raise NotOurs(f"The panel itself runs in or below process {pid}.")
    return target


def send(target: Target, number: signal.Signals = signal.SIGTERM) -> bool:
    """Send this signal. Returns False if the process had already ended. Raises NotOurs."""
    def ours(_: int) -> bool:
        _check_owner(target, None)
        return True

    try:
        return procs.send(target.pid, target.ticks, number, ours)
    except PermissionError:
        raise NotOurs(f"The system does not let you end process {target.pid}.") from None


def is_of_another(target: Target, proc: Path = Path("/proc")) -> bool:
    """Whether the process belongs to another user. Raises NotOurs if it has ended."""
    try:
        text = (proc / str(target.pid) / "status").read_text(errors="replace")
    except OSError:
        raise NotOurs(f"Process {target.pid} has ended already.") from None
    uids = next((line.split()[1:3] for line in text.splitlines() if line.startswith("Uid:")), [])
    return uids != [str(os.getuid())] * 2


def gone(target: Target) -> bool:
    return not procs.alive(target.pid, target.ticks)


def _check_owner(target: Target, name: str | None, proc: Path = Path("/proc")) -> None:
    """Raise NotOurs unless the real and the effective user are ours, or we are root."""
    if is_of_another(target, proc) and os.getuid() != 0:
        whose = f", {name}" if name else ""
        raise NotOurs(f"Process {target.pid} belongs to another user{whose}; only its owner can "
                      "end it.")


def _above(proc: Path) -> set[int]:
    """The pids of this process and of all its ancestors."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            text = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            break
        pid = int(text.rpartition(")")[2].split()[1])
    return found


def _boot_time(proc: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    return None
