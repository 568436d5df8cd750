"""Ends a process from the screen: asks, sends a signal, waits, and asks again before killing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from textual.app import App

from gpu_engine.devices.records import DeviceProcess
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.detail import end_process
from gpu_panel.launch.detail.end_process import Target

PATIENCE = 5.0
"""Seconds that a process has to end after SIGTERM."""


async def ask_and_end(app: App[Any], process: DeviceProcess) -> None:
    """Ask the person, then end `process` by SIGTERM or, after another question, by SIGKILL. Call
    this from a worker. Raises NotOurs if the process may not be ended from here."""
    target = await in_thread(lambda: end_process.examine(process), name="panel-end-process")
    if not await app.push_screen_wait(Confirm(
            f"End process {process.pid}", f"{_described(process)}\n\nIt will be asked to end "
            "(SIGTERM). What it has not saved may be lost.", yes="End it")):
        return
    if not await in_thread(lambda: end_process.send(target), name="panel-end-process"):
        app.notify(f"Process {target.pid} had already ended")
        return
    if await _ends(target):
        app.notify(f"Process {target.pid} has ended")
        return
    if await app.push_screen_wait(Confirm(
            f"Process {target.pid} is still running", f"{_described(process)}\n\nIt has not "
            f"ended within {PATIENCE:g} s. SIGKILL ends it at once, and it can save "
            "nothing.", yes="Kill it", no="Leave it")):
        sent = await in_thread(lambda: end_process.send(target, force=True),
                               name="panel-end-process")
        app.notify(f"Process {target.pid} {'was killed' if sent else 'had ended by itself'}")


def _described(process: DeviceProcess) -> str:
    """What identifies the process for a person: owner, command, age and GPU memory."""
    parts = [process.user or units.UNKNOWN, process.command or units.UNKNOWN]
    if process.started is not None:
        parts.append(f"since {units.clock(time.time() - process.started)}")
    if process.memory is not None:
        parts.append(f"{units.gib(process.memory)} GiB of GPU memory")
    return " · ".join(parts)


async def _ends(target: Target) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if end_process.gone(target):
            return True
        await asyncio.sleep(0.1)
    return end_process.gone(target)
