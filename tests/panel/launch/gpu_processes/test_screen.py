"""The table of all GPUs' processes: reached from the devices, and a process ended from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gpu_engine.devices.records import DeviceProcess, Sample
from gpu_engine.runs.folder import Run
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch.end_process import SignalDialog
from gpu_panel.launch.processes import GpuProcessesPane
from gpu_panel.launch.run_feed import RunLine, RunsFeed

from ....conftest import gpus
from ...machines import lab
from ...panel_kit import StillSampler, looked, panel, screen_text, shown, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=str)
async def test_from_the_devices_to_the_end_of_a_process(size, tmp_path, monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); "
                              "time.sleep(60)"], stdout=subprocess.PIPE)
    child.stdout.readline()
    try:
        two = gpus(2)
        mine = DeviceProcess(child.pid, 1 << 30, user="me", command="python mine.py",
                             started=time.time())
        rank = DeviceProcess(os.getpid(), 5 << 30, user="me", command="python rank.py")
        samples = (Sample(two.devices[0], processes=(mine, rank)),
                   Sample(two.devices[1], processes=(rank,)))
        line = RunLine(Run(tmp_path / "3f2a"), "gpt", "ddp", 2, "running", True, time.time(),
                       pids=((os.getpid(), 1),))
        monkeypatch.setattr(RunsFeed, "refresh", lambda self: ((line,), 0))
        async with panel(two, sampler=StillSampler(two, samples), hosts=lab(), size=size) as (
                pilot, screen):
            await looked(pilot, screen)
            if size[0] >= 160:  # else the edge has what there is no room for in the lines
                assert "P processes of all" in screen_text(pilot.app)
            await pilot.press("P")
            await until(pilot, lambda: pilot.app.screen.query(GpuProcessesPane)
                        and "mine.py" in screen_text(pilot.app))
            table = pilot.app.screen.query_one(GpuProcessesPane)
            assert table.keys == [str(os.getpid()), str(child.pid), "gpu1 9"]
            assert "3f2a rank 1" in shown(table)
            labels = [key.label for key in pilot.app.screen.query_one(KeyBar).shown]
            assert {"end process", "sort", "back"} <= set(labels)
            assert len(labels) <= 8

            await pilot.press("x")  # a rank: its run is stopped instead
            await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                        and "stop the run instead?" in screen_text(pilot.app))
            await pilot.press("n", "end", "x")  # one of a host
            await until(pilot, lambda: any("runs on gpu1: end it there" in n.message
                                           for n in pilot.app._notifications))
            await pilot.press("up", "x")
            await until(pilot, lambda: isinstance(pilot.app.screen, SignalDialog))
            said = screen_text(pilot.app)
            assert all(w in said for w in (str(child.pid), "me · python mine.py", "SIGTERM"))
            await pilot.press("y")
            await until(pilot, lambda: child.poll() is not None)
            assert child.returncode == -signal.SIGTERM

            await pilot.press("o")
            await until(pilot, lambda: "3 by GPU" in str(table.border_title))
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is screen)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
