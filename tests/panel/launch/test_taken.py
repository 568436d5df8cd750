"""Devices that are not free: asked once, shared on purpose; the freest by number; the header."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpu_engine.common import places
from gpu_engine.devices import leases as lease
from gpu_engine.devices.records import DeviceProcess, HostSample, Sample, Snapshot
from gpu_engine.runs.folder import Run
from gpu_panel.common.dialogs import AskCount, Confirm
from gpu_panel.launch.devices.lines import Look, build
from gpu_panel.launch.devices.pane import DevicesPane
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.host_bar import HostBar

from ...conftest import gpus
from ..panel_kit import StillSampler, panel, screen_text, settled, shown, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Launches that were asked for, none of them real."""
    plans = []

    def start(prepared):
        plans.append(prepared)
        return Run(tmp_path / "none")

    monkeypatch.setattr("gpu_engine.launch.launcher.start", start)
    monkeypatch.setattr("gpu_panel.launch.runs.pane.RunsPane.open", lambda self, run: None)
    return plans


async def asked(pilot, *said: str) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                and all(text in screen_text(pilot.app) for text in said))


async def test_a_device_that_another_run_holds_can_be_shared_after_one_question(started):
    machine = gpus(2)
    with lease.acquire(places.leases_folder(), machine.devices[1:], "3f2a"):
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
            await until(pilot, lambda: pilot.app.screen is screen)
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
    with lease.acquire(places.leases_folder(), machine.devices, "3f2a"):
        async with panel(machine, "single") as (pilot, screen):
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


def test_that_a_preset_shares_outlives_ticks():
    draft = Draft()
    draft.assign("devices.ids=0")
    draft.assign("devices.share=true")
    machine = gpus(2)
    draft.resolve(machine, (), {})
    assert draft.spec().devices.share is True
    draft.tick(["1"])
    assert draft.spec().devices.share is True
    assert draft.to_save(machine).devices.share is True


# --- the freest, by number ----------------------------------------------------------------------

async def test_so_many_of_the_freest_and_again():
    machine = gpus(4)
    async with panel(machine) as (pilot, screen):
        await pilot.press("F")
        await until(pilot, lambda: isinstance(pilot.app.screen, AskCount))
        await pilot.press("9", "enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, AskCount)  # there are four
        await pilot.press("backspace", "3", "enter")
        await until(pilot, lambda: pilot.app.screen is screen)
        await until(pilot, lambda: len(screen.draft.ids) == 3)
        await settled(pilot, screen)
        await pilot.press("a", "a")
        await until(pilot, lambda: screen.draft.ids == [])
        await settled(pilot, screen)
        await pilot.press("f")
        await until(pilot, lambda: len(screen.draft.ids) == 3)
        await pilot.press("F", "escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert len(screen.draft.ids) == 3


# --- what was inherited; the header -------------------------------------------------------------

def test_an_inherited_allocation_is_shown_with_its_numbers():
    machine = gpus(4)
    kept = tuple(replace(machine.devices[i], visible_index=n) for n, i in enumerate((3, 1)))
    found = replace(machine, devices=kept, inherited_visible="3,1",
                    visible_variable="CUDA_VISIBLE_DEVICES")
    _, rows = build(Look(found, Snapshot(1.0, tuple(map(Sample, kept)))), 80)
    said = "\n".join("".join(part for part, _ in line) for row in rows for line in row.lines)
    assert "☐ 3→0" in said
    assert "☐ 1→1" in said
    assert '"3,1"' in said


@pytest.mark.parametrize(("width", "there"), [(160, True), (80, False)])
async def test_the_network_is_shown_where_there_is_room(width, there):
    machine = gpus(1)
    sampler = StillSampler(machine)
    host = HostSample(0.1, 1 << 30, 2 << 30, 3 << 30, 1.5 * 2**20, None)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(width, 30)) as (_, screen):
        said = shown(screen.query_one(HostBar))
        assert ("net ↑ 1.5 MiB/s ↓ –  " in said) is there
        assert "RAM 1/2G" in said
