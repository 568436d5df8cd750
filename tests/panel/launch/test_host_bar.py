"""The line about the machine: disk, memory and power."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.color import Color

from gpu_engine.devices.records import HostSample, Sample
from gpu_panel.launch.host_bar import HostBar

from ...conftest import gpus, slots
from ..colours import painted
from ..panel_kit import StillSampler, panel, screen_text, shown, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(("free", "said", "colour"), [
    (1 << 30, "disk 1.0G free", "text-warning"), (0, "disk 0M free", "text-error"),
])
async def test_a_disk_that_fills_up_stands_out(free: int, said: str, colour: str):
    machine = slots(1)
    sampler = StillSampler(machine)
    host = HostSample(0.12, 61 << 30, 251 << 30, free)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, _):
        await until(pilot, lambda: said in screen_text(pilot.app))
        ink = next(ink for text, ink, _ in painted(pilot.app) if said in text)
        assert ink.hex == Color.parse(pilot.app.theme_variables[colour]).hex


async def test_the_power_of_all_devices_where_there_is_room():
    """A lost device's last figure is none of it."""
    machine = gpus(8)
    samples = tuple(Sample(d, power=300.0, processes=()) for d in machine.devices[:7])
    lost = Sample(machine.devices[7], power=300.0, problem="GPU is lost")
    sampler = StillSampler(machine, (*samples, lost))
    host = HostSample(0.1, 1 << 30, 2 << 30, 3 << 30)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(160, 30)) as (_, screen):
        bar = screen.query_one(HostBar)
        assert "8 GPUs · 2.1 kW · " in shown(bar)
        assert "RAM 1/2G" in shown(bar)
