"""The launch screen's way to end a process: ask, signal, ask once more."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from textual import work

from gpu_engine.devices.records import DeviceProcess
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.errors import guard
from gpu_panel.launch.detail import end_process as ending
from gpu_panel.launch.runs.pane import RunsTable

if TYPE_CHECKING:
    from gpu_panel.launch.screen import LaunchScreen

PATIENCE = 5.0
"""Seconds that a process has to end by itself."""


class EndingActions:
    """Mixed into the launch screen."""

    @work(exit_on_error=False, group="ending")
    async def end_process(self: LaunchScreen, process: DeviceProcess | None) -> None:
        with guard(self.app):
            if process is None:
                self.notify("There is no process under the cursor", severity="warning")
                return
            for line in self.query_one(RunsTable).lines or ():
                rank = dict(line.pids).get(process.pid)
                if rank is not None:  # its end alone would make the run fail
                    await self.stop_run(line, f"Process {process.pid} is rank {rank} of run "
                                              f"{line.id}: stop the run instead")
                    return
            target = await in_thread(lambda: ending.examine(process), name="panel-ending")
            if not await self.app.push_screen_wait(Confirm(
                    f"End process {process.pid}", f"{_told(process)}\n\nIt is asked to end "
                    "(SIGTERM). What it has not saved may be lost.", yes="End it")):
                return
            if not await in_thread(lambda: ending.send(target), name="panel-ending"):
                self.notify(f"Process {target.pid} had ended already")
                return
            if await _ends(target):
                self.notify(f"Process {target.pid} has ended")
                return
            if await self.app.push_screen_wait(Confirm(
                    f"Process {target.pid} is still there", f"{_told(process)}\n\nIt has not "
                    f"ended within {PATIENCE:g} s. SIGKILL ends it at once, and it can save "
                    "nothing.", yes="Kill it", no="Let it be")):
                sent = await in_thread(lambda: ending.send(target, force=True),
                                       name="panel-ending")
                self.notify(f"Process {target.pid} "
                            f"{'was killed' if sent else 'had ended by itself'}")


def _told(process: DeviceProcess) -> str:
    """Which one it is, for a person to be sure."""
    parts = [process.user or units.UNKNOWN, process.command or units.UNKNOWN]
    if process.started is not None:
        parts.append(f"since {units.clock(time.time() - process.started)}")
    if process.memory is not None:
        parts.append(f"{units.gib(process.memory)} GiB of GPU memory")
    return " · ".join(parts)


async def _ends(target: ending.Target) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if ending.gone(target):
            return True
        await asyncio.sleep(0.1)
    return ending.gone(target)
