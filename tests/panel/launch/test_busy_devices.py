"""Devices that are not free are shared only after a question; the freest are ticked by number."""

from __future__ import annotations

import time

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases as lease
from gpu_engine.devices.records import DeviceProcess, Sample
from gpu_engine.runs.folder import Run
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.devices import DevicesPane

from ...conftest import gpus
from ..panel_kit import StillSampler, on_top, panel, screen_text, settled, shown, until


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Records launches instead of starting them."""
    plans = []

    def start(prepared):
        plans.append(prepared)
        return Run(tmp_path / "none")

    monkeypatch.setattr("gpu_engine.launching.launcher.start", start)
    monkeypatch.setattr("gpu_panel.launch.runs.RunsPane.open", lambda self, run: None)
    return plans


async def asked(pilot, *said: str):
    await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                and all(text in screen_text(pilot.app) for text in said))


async def test_a_device_that_another_run_holds_can_be_shared_after_one_question(started):
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices[1:], "3f2a"):
        async with panel(machine, "single") as (pilot, screen):
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            screen.devices.tick(["1"])
            await settled(pilot, screen)
            assert "held by run 3f2a" in shown(screen.query_one(DevicesPane))
            assert screen.review.problems
            await pilot.press("ctrl+l")
            await asked(pilot, "GPU 1: held by run 3f2a", "Share and launch")
            await pilot.press("n")
            await on_top(pilot, screen)
            assert started == []
            await pilot.press("ctrl+l")
            await asked(pilot, "Share and launch")
            await pilot.press("y")
            await until(pilot, lambda: started)
            assert started[0].spec.devices.share is True
            assert "devices.share=true" in started[0].plan.lines[0]
            screen.devices.tick(["0"])
            assert not screen.draft.data["devices"].get("share")


async def test_something_else_that_does_not_fit_is_said_before_sharing(started):
    machine = gpus(2)
    with lease.acquire(paths.leases_folder(), machine.devices, "3f2a"):
        async with panel(machine, "single") as (pilot, screen):
            screen.draft.put("parallel.mode", "single")
            screen.devices.tick(["0", "1"])
            await settled(pilot, screen)
            await pilot.press("ctrl+l")
            await pilot.pause(0.2)
            assert pilot.app.screen is screen
            assert started == []


async def test_a_busy_device_ticked_by_hand_is_asked_about_once(started):
    machine = gpus(1)
    bob = DeviceProcess(7, 9 << 30, user="bob", command="python [bold]x.py", started=time.time())
    busy = Sample(machine.devices[0], 0.9, 9 << 30, 80 << 30, processes=(bob,))
    async with panel(machine, "single", sampler=StillSampler(machine, (busy,))) as (pilot, screen):
        await pilot.press("space")
        await settled(pilot, screen)
        await pilot.press("ctrl+l")
        await asked(pilot, "GPU 0: bob · python [bold]x.py", "Share and launch")
        await pilot.press("y")
        await until(pilot, lambda: started)
        assert started[0].spec.devices.share is True
        assert "devices.share=true" in started[0].plan.lines[0]  # the same by hand


async def test_a_device_with_a_fault_is_asked_about_and_not_shared(started):
    machine = gpus(1)
    worn = Sample(machine.devices[0], 0.0, 0, 80 << 30, processes=(), health=("2 errors",))
    async with panel(machine, "single", sampler=StillSampler(machine, (worn,))) as (pilot, screen):
        await pilot.press("space")
        await settled(pilot, screen)
        await pilot.press("ctrl+l")
        await asked(pilot, "GPU 0: 2 errors", "Launch anyway")
        await pilot.press("y")
        await until(pilot, lambda: started)
        assert started[0].spec.devices.share is False


# --- what was inherited; the header -------------------------------------------------------------
