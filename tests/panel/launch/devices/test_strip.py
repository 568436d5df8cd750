"""The devices in one line: a cell for each, above the tabs of a narrow screen."""

from __future__ import annotations

import pytest

from gpu_engine.devices.records import Sample
from gpu_panel.launch.devices import lines
from gpu_panel.launch.devices.lines import DeviceTable, Ours
from gpu_panel.launch.devices.shades import DeviceStrip

from ....conftest import gpus
from ...panel_kit import StillSampler, looked, panel, shown, until

pytestmark = pytest.mark.usefixtures("home")
SHARES = (0.0, 0.5, 1.0, None)


def sampler(machine, problem: str | None = None) -> StillSampler:
    return StillSampler(machine, tuple(
        Sample(device, utilization=share, problem=problem if share == 1.0 else None)
        for device, share in zip(machine.devices, SHARES, strict=True)))


def test_a_cell_tells_load_run_and_trouble():
    machine = gpus(4)
    table = DeviceTable(machine, sampler(machine).latest,
                        ours={"1": Ours("3f2a", 0, "toy", "2 min", hue=3)})
    assert lines.strip(table) == (("▁", "idle0"), ("▅", "moderate3"), ("█", "heavy0"), ("·", "dim"))
    hurt = DeviceTable(machine, sampler(machine, "fell off the bus").latest)
    assert lines.strip(hurt)[2] == ("!", "bad")
    assert lines.strip(DeviceTable()) == ()


async def test_it_stands_beside_the_tabs_where_the_devices_are_behind():
    machine = gpus(4)
    async with panel(machine, sampler=sampler(machine), size=(80, 24)) as (pilot, screen):
        await looked(pilot, screen)
        await pilot.press("4")
        strip = screen.query_one(DeviceStrip)
        await until(pilot, lambda: shown(strip) == "▁▅█·")
        assert (strip.region.right, strip.region.y) == (79, 1)
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: not strip.region.area)
