"""The panel on a machine with a stand-in driver, from the library's calls to the screen."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from gpu_engine.devices.backends import nvidia
from gpu_panel.app import PanelApp
from gpu_panel.launch.devices import DevicesPane

from ..panel.panel_kit import settled, shown, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(autouse=True)
def _without_slurm(monkeypatch):
    """This machine may have it, and it would be a row of the table."""
    monkeypatch.setattr("gpu_engine.slurm.submit.can_be_asked", lambda: False)


@asynccontextmanager
async def panel(preset="single", sets=(), size=(120, 40), notifications=False):
    """The panel that finds and samples the devices itself."""
    app = PanelApp(preset, sets=sets)
    async with app.run_test(size=size, notifications=notifications) as pilot:
        screen = app.screen_stack[0]
        await until(pilot, lambda: screen.review is not None and screen.devices.resolved)
        await settled(pilot, screen)
        yield pilot, screen, screen.query_one(DevicesPane)


# --- CPU slots on a machine with GPUs -------------------------------------------------------------


async def test_cpu_slots_in_place_of_the_gpus_and_back(as_this_machine):
    as_this_machine("count 3")
    async with panel(sets=("devices.ids=1",)) as (pilot, screen, table):
        assert table.keys == ["0", "1", "2"]
        await pilot.press("c")
        await until(pilot, lambda: screen.draft.ids == ["cpu:0"])
        await settled(pilot, screen)
        assert set(table.keys) <= {f"cpu:{i}" for i in range(8)}
        assert "c shows this machine's 3 GPUs again" in shown(table)
        assert not screen.review.problems
        assert "devices.ids=cpu:0" in screen.review.plan.lines[0]
        assert "CUDA_VISIBLE_DEVICES" in screen.review.plan.processes[0].env
        await pilot.press("c")
        await until(pilot, lambda: screen.draft.ids == ["0"])  # as many of the freest
        await settled(pilot, screen)
        assert table.keys == ["0", "1", "2"]
        assert "again" not in shown(table)


async def test_where_there_is_no_gpu_the_slots_stay(monkeypatch):
    monkeypatch.setattr(nvidia, "NVML", "libnvidia-ml.so.of-no-machine")
    async with panel(sets=("devices.ids=cpu:0",)) as (pilot, screen, table):
        before = screen.source._sampler
        await pilot.press("c")
        await until(pilot, lambda: any("No GPU was found" in n.message
                                       for n in pilot.app._notifications))
        assert screen.draft.ids == ["cpu:0"]
        assert table.keys[0] == "cpu:0"
        assert screen.source._sampler is before


# --- while the driver fails -----------------------------------------------------------------------


async def test_nothing_is_free_while_the_driver_hangs(as_this_machine):
    machine = as_this_machine("count 2")
    async with panel(sets=("devices.ids=0",)) as (pilot, screen, table):
        await until(pilot, lambda: screen.source.freedom)
        machine.add("gpu * hang 1")
        await until(pilot, lambda: "not answered" in screen.source.freedom["0"].reason)
        await until(pilot, lambda: "0 free" in str(table.border_title))
        assert "not answered" in shown(table)
