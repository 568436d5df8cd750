"""End one process of the person's own, and never another. No widgets; blocks for moments.

A process is known by pid and start time, looked at when the person is asked and again right
before each signal. The signal goes through a pidfd where the kernel has one, so that it can't
reach a process that took the number over in between.
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
"""Seconds that two figures of one start may differ: the boot's time is in whole seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """One process, for sure."""

    pid: int
    ticks: int


class NotOurs(UserError):
    """The process is not one that may be ended from here."""

    title = "This process is left alone"


def examine(process: DeviceProcess, proc: Path = Path("/proc")) -> Target:
    """The process that the table shows, as it is now. Raises NotOurs with the reason."""
    pid = process.pid
    if not process.visible:
        raise NotOurs(f"Process {pid} can't be seen from here: it runs in another container or "
                      "pid namespace, where its own people can end it.")
    ticks = procs.start_ticks(pid)
    if ticks is None:
        raise NotOurs(f"Process {pid} has ended already.")
    boot = _boot_time(proc)
    if process.started is not None and boot is not None \
            and abs(boot + ticks / _TICK - process.started) > _OFF:
        raise NotOurs(f"Process {pid} is another one now: the number was given away again.")
    target = Target(pid, ticks)
    _check_owner(target, process.user, proc)
    if pid in _above(proc):
        raise NotOurs(f"The panel itself runs in or below process {pid}.")
    return target


def send(target: Target, *, force: bool = False) -> bool:
    """SIGTERM, or SIGKILL with `force`. False: it had ended already. Raises NotOurs."""
    def ours(_: int) -> bool:
        _check_owner(target, None)
        return True

    try:
        return procs.send(target.pid, target.ticks, signal.SIGKILL if force else signal.SIGTERM,
                          ours)
    except PermissionError:
        raise NotOurs(f"The system does not let you end process {target.pid}.") from None


def gone(target: Target) -> bool:
    """Whether the process has ended."""
    return not procs.alive(target.pid, target.ticks)


def _check_owner(target: Target, name: str | None, proc: Path = Path("/proc")) -> None:
    """Real and effective user must both be ours, for root too: nobody ends others' work here."""
    try:
        text = (proc / str(target.pid) / "status").read_text(errors="replace")
    except OSError:
        raise NotOurs(f"Process {target.pid} has ended already.") from None
    uids = next((line.split()[1:3] for line in text.splitlines() if line.startswith("Uid:")), [])
    if uids != [str(os.getuid())] * 2:
        whose = f" of {name}" if name else ""
        raise NotOurs(f"Process {target.pid} is another user's{whose}: only they can say whether "
                      "it may end.")


def _above(proc: Path) -> set[int]:
    """This process and all that it runs below."""
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
