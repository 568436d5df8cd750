"""Ends a process from the screen: asks, sends a signal, waits, and asks again before killing. One's
own only, as root anybody's.

A process is identified by pid and start time, which are read when the person is asked and again
right before each signal. The signal goes through a pidfd if the kernel has them, so that it can't
reach another process that got the same pid in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
from textual.app import App

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.devices.records import DeviceProcess
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.run_line import RunLine, ranks_by_pid

PATIENCE = 5.0
"""Seconds that a process has to end after a signal."""
_OFF = 2.0
"""Seconds by which readings of one start time may differ: the boot time has whole seconds."""


async def end_or_stop(app: App[Any], process: DeviceProcess, host: str | None,
                      runs: Sequence[RunLine],
                      stop: Callable[[RunLine, str], object]) -> None:
    """Ask the person, then end `process`; of a rank of `runs`, `stop` the run instead, as it would
    fail without the rank. A process of `host` is left alone. Call this from a worker. Raises
    NotOurs if the process may not be ended from here."""
    if host is not None:  # its number may be another process's here
        app.notify(f"Process {process.pid} runs on {host}: end it there", severity="warning",
                   markup=False)
        return
    rank = ranks_by_pid(runs).get(process.pid)
    if rank is not None:
        run, number = rank
        stop(run, f"Process {process.pid} is rank {number} of run {run.id}: stop the run instead?")
        return
    await _ask_and_end(app, process)


async def _ask_and_end(app: App[Any], process: DeviceProcess) -> None:
    target = await in_thread(lambda: examine(process))
    others = await in_thread(lambda: is_of_another(target))
    about = _described(process)
    whose = f"\n\n! It belongs to {process.user or 'another user'}, not to you." if others else ""
    if not await app.push_screen_wait(Confirm(
            f"End process {process.pid}", f"{about}{whose}\n\nSIGTERM asks it to end. What it has "
            "not saved may be lost.", yes="End it", no="Cancel")):
        return
    if not await in_thread(lambda: send(target)):
        app.notify(f"Process {target.pid} had already ended", markup=False)
        return
    if await _ends(target):
        app.notify(f"Process {target.pid} has ended", markup=False)
        return
    if await app.push_screen_wait(Confirm(
            f"Process {target.pid} is still running", f"{about}\n\nIt has not "
            f"ended within {PATIENCE:g} s. SIGKILL ends it at once, and it can save "
            "nothing.", yes="Kill it", no="Leave it")):
        sent = await in_thread(lambda: send(target, signal.SIGKILL))
        if sent and not await _ends(target):
            app.notify(f"Process {target.pid} was killed but is still there: it waits for a driver "
                       "or a disk", severity="warning", markup=False)
            return
        app.notify(f"Process {target.pid} {'was killed' if sent else 'had ended by itself'}",
                   markup=False)


def _described(process: DeviceProcess) -> str:
    parts = [process.user or units.UNKNOWN, process.command or units.UNKNOWN]
    if process.started is not None:
        parts.append(f"since {units.clock(time.time() - process.started)}")
    if process.memory is not None:
        parts.append(f"{units.gib(process.memory)} GiB of GPU memory")
    return " · ".join(parts)


async def _ends(target: Target) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if gone(target):
            return True
        await asyncio.sleep(0.1)
    return gone(target)


@dataclass(frozen=True, slots=True)
class Target:
    """One certain process: its pid and its start time in clock ticks since boot."""

    pid: int
    ticks: int


class NotOurs(UserError):
    title = "Can't end this process"


def examine(process: DeviceProcess) -> Target:
    """Check the process that the table shows, as it is now. Raises NotOurs with the reason."""
    pid = process.pid
    if not process.visible:
        raise NotOurs(f"Process {pid} is not visible from here: it runs in another "
                      "container or pid namespace. End it there.")
    ticks = procs.start_ticks(pid)
    if ticks is None:
        raise _ended(pid)
    target = Target(pid, ticks)
    with suppress(psutil.Error):
        if process.started is not None \
                and abs(psutil.Process(pid).create_time() - process.started) > _OFF:
            raise NotOurs(f"The process in the table has ended: {pid} is another process now.")
    _check_owner(target, process.user)
    if pid in (os.getpid(), *(above.pid for above in psutil.Process().parents())):
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


def is_of_another(target: Target) -> bool:
    """Whether the process belongs to another user. Raises NotOurs if it has ended."""
    try:
        uids = psutil.Process(target.pid).uids()
    except psutil.Error:
        raise _ended(target.pid) from None
    return {uids.real, uids.effective} != {os.getuid()}


def gone(target: Target) -> bool:
    return not procs.alive(target.pid, target.ticks)


def _ended(pid: int) -> NotOurs:
    return NotOurs(f"Process {pid} has ended already.")


def _check_owner(target: Target, name: str | None) -> None:
    """Raise NotOurs unless the real and the effective user are ours, or we are root."""
    if is_of_another(target) and os.getuid() != 0:
        whose = f", {name}" if name else ""
        raise NotOurs(f"Process {target.pid} belongs to another user{whose}; only its owner can "
                      "end it.")
