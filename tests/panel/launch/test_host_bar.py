"""The line about the machine: disk, memory and network."""

from dataclasses import replace

import pytest
from textual.color import Color

from gpu_engine.devices.records import HostSample, Sample
from gpu_panel.launch.host_bar import HostBar

from ...conftest import gpus, slots
from ..colours import painted
from ..panel_kit import StillSampler, panel, says, shown, until


@pytest.mark.parametrize(("free", "said", "colour"), [
    (1 << 30, "disk 1.0G free", "text-warning"), (0, "disk 0M free", "text-error"),
])
async def test_a_disk_that_fills_up_stands_out(free, said, colour):
    machine = slots(1)
    sampler = StillSampler(machine)
    host = HostSample(0.12, 61 << 30, 251 << 30, free, 1e6, 1e6)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, _):
        await says(pilot, said)
        ink = next(ink for text, ink, _ in painted(pilot.app) if said in text)
        assert ink.hex == Color.parse(pilot.app.theme_variables[colour]).hex


async def test_network_and_the_power_of_all_devices_where_there_is_room():
    """A lost device's last figure is none of it."""
    machine = gpus(8)
    samples = tuple(Sample(d, power=300.0, processes=()) for d in machine.devices[:7])
    lost = Sample(machine.devices[7], power=300.0, problem="GPU is lost")
    sampler = StillSampler(machine, (*samples, lost))
    host = HostSample(0.1, 1 << 30, 2 << 30, 3 << 30, 1.5 * 2**20, None)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(160, 30)) as (pilot, screen):
        bar = screen.query_one(HostBar)
        assert "8 GPUs · 2.1 kW · " in shown(bar)
        assert "RAM 1/2G" in shown(bar)
        assert "net ↑ 1.5 MiB/s ↓ –  " in shown(bar)
        await pilot.resize_terminal(80, 30)
        await until(pilot, lambda: "net" not in shown(bar) and "RAM 1/2G" in shown(bar))
