"""A GPU that is lost: said as that whatever the others do, and nothing is offered or started on
it, shared or not."""

from __future__ import annotations

import time

import pytest

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.devices.sampler import Sampler
from gpu_engine.places.verbs import prepare
from gpu_engine.spec.read import from_dict
from gpu_panel.common.dialogs import Confirm

from ..conftest import wait_for
from ..panel.panel_kit import screen_text, shown, until
from .test_panel_on_standin import panel

pytestmark = pytest.mark.usefixtures("home")


def spec(*ids, pick=None, **sections):
    chosen = {"pick": pick} if pick else {"ids": list(ids)}
    return from_dict({"task": {"command": ["true"]}, "devices": chosen | {"share": True},
                      "parallel": {"mode": "ddp"}} | sections)


@pytest.mark.parametrize("lines", [
    ("gpu 1 lost 1", "gpu 0 hang 1"), ("gpu 1 gone 1", "gpu 0 hang 1"),
    ("gpu 1 lost 1", "gpu * hang 1"), ("gpu 1 lost 1", "crash 1", "init_hang 1")])
def test_it_is_said_to_be_lost_while_another_hangs(as_this_machine, lines):
    machine = as_this_machine("count 3")
    inventory = discover()
    with Sampler(inventory, interval=0.05, patience=0.3) as found:
        wait_for(lambda: found.latest and not found.latest.problem)
        machine.add(lines[0])
        wait_for(lambda: found.latest.of("1").lost)
        machine.add(*lines[1:])
        wait_for(lambda: found.latest.of("0").problem)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(0.02)
            assert "not answered" in found.latest.of("0").problem \
                or "signal" in found.latest.of("0").problem
            sample = found.latest.of("1")
            assert "lost" in sample.problem or "no longer lists it" in sample.problem
            assert sample.lost
            assert not found.latest.of("0").lost


def test_sharing_does_not_help(as_this_machine):
    as_this_machine("count 2", "gpu 1 lost 1")
    prepare(spec("0"))
    with pytest.raises(SpecError, match="GPU 1 can't be used: lost: it fell off the bus"):
        prepare(spec("0", "1"))


async def refused(pilot, screen):
    await until(pilot, lambda: any("GPU 1 can't be used: lost: it fell off the bus" in p.message
                                   for p in screen.review.problems))
    await pilot.press("ctrl+l")
    await until(pilot, lambda: "Can't launch" in screen_text(pilot.app))
    assert not isinstance(pilot.app.screen, Confirm)


async def test_the_panel_offers_no_sharing_of_it(as_this_machine, tmp_path):
    machine = as_this_machine("count 2")
    async with panel(sets=("devices.ids=1",), notifications=True) as (pilot, screen, table):
        held = leases.acquire(paths.leases_folder(), screen.source.inventory.devices[1:], "3f2a")
        with held:
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            machine.add("gpu 1 lost 1")
            await until(pilot, lambda: "lost: it fell off the bus" in shown(table))
            await refused(pilot, screen)
            assert "GPU 1 can't be used" in " ".join(shown(table).split())
