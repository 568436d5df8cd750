"""The order of ticking is the order of the ranks: it is shown, kept, and can be changed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gpu_engine.devices.records import Device
from gpu_panel.launch.devices.pane import MOST_WAITS, DevicesPane

from ....conftest import gpus
from ...machines import busy_machine
from ...panel_kit import StillSampler, panel, screen_text, settled, shown, until

pytestmark = pytest.mark.usefixtures("home")


def roles(table: DevicesPane) -> dict[str, str]:
    """Device id → the start of its second line."""
    lines = [line.strip("│ ") for line in shown(table).splitlines()]
    found = {}
    for above, below in itertools.pairwise(lines):
        if below.startswith("└ "):
            found[above.split()[1]] = below[2:].partition(" · ")[0]
    return found


@pytest.mark.parametrize("size", [(160, 60), (80, 24)])
async def test_a_presets_order_is_kept_and_shown(size):
    async with panel(gpus(8), "ddp", sets=("devices.ids=7,2,5",), size=size) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        assert screen.draft.ids == ["7", "2", "5"]
        assert "ranks in your order (r)" in screen_text(pilot.app)
        told = roles(table)
        assert (told["2"], told["5"], told["0"]) == ("rank 1", "rank 2", "free")
        await pilot.press("space")  # GPU 0
        await settled(pilot, screen)
        assert screen.draft.ids == ["7", "2", "5", "0"]
        assert roles(table)["0"] == "rank 3"
        assert "GPU 7 → cuda:0 rank 0   GPU 2 → cuda:1 rank 1   GPU 5 → cuda:2 rank 2   " \
            "GPU 0 → cuda:3 rank 3" in "   ".join(r.sentence() for r in screen.review.plan.ranks)
        assert screen.review.plan.processes[0].env["CUDA_VISIBLE_DEVICES"] == "7,2,5,0"
        await pilot.press("space")
        await settled(pilot, screen)
        assert screen.draft.ids == ["7", "2", "5"]


async def test_it_can_be_chosen():
    async with panel(gpus(4), "ddp", sets=("devices.ids=3,1",)) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        await pilot.press("a")
        await settled(pilot, screen)
        assert screen.draft.ids == ["3", "1", "0", "2"]
        await pilot.press("less_than_sign")  # GPU 0, under the cursor
        await settled(pilot, screen)
        assert screen.draft.ids == ["3", "0", "1", "2"]
        await pilot.press("less_than_sign", "less_than_sign", "greater_than_sign")
        await settled(pilot, screen)
        assert screen.draft.ids == ["3", "0", "1", "2"]
        assert roles(table) == {"0": "rank 1", "1": "rank 2", "2": "rank 3", "3": "rank 0"}
        await pilot.press("r")
        await settled(pilot, screen)
        assert screen.draft.ids == ["0", "1", "2", "3"]
        assert "in your order" not in screen_text(pilot.app)
        await pilot.press("a", "greater_than_sign", "r")
        await settled(pilot, screen)
        assert screen.draft.ids == []


async def test_what_the_order_means_is_the_modes():
    sets = ("devices.ids=2,0", "parallel.mode=dp")
    async with panel(gpus(3), "ddp", sets=sets) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        assert (roles(table)["2"], roles(table)["0"]) == ("cuda:0", "cuda:1")
        screen.draft.put("parallel.mode", "multinode")
        screen.draft.put("parallel.node_rank", "3")
        screen.edited()
        await settled(pilot, screen)
        assert (roles(table)["2"], roles(table)["0"]) == ("rank 6", "rank 7")
        screen.devices.tick(["1"])
        await settled(pilot, screen)
        assert roles(table)["1"] == "free"


async def test_the_table_can_be_sorted_and_ranks_keep_the_machine_s_order():
    four, sampler = busy_machine()
    busiest = [0.1, 0.9, None, 0.5]
    samples = tuple(replace(s, utilization=u)
                    for s, u in zip(sampler.latest.samples, busiest, strict=True))
    async with panel(four, sampler=StillSampler(four, samples)) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        await pilot.press("o")
        await pilot.pause()
        assert table.keys == ["1", "3", "0", "2"]
        assert "busiest first" in str(table.border_title)
        await pilot.press("a")
        await settled(pilot, screen)
        assert screen.draft.ids == ["0", "1", "2", "3"]
        await pilot.press("o", "o")
        await pilot.pause()
        assert "free first" in str(table.border_title)
        await pilot.press("o")
        await pilot.pause()
        assert table.keys == ["0", "1", "2", "3"]


# --- what a preset asks for, where the driver is slow -------------------------------------------

async def test_the_freest_are_ticked_however_long_the_first_look_takes():
    machine = gpus(3)
    late = StillSampler(machine)
    seen, late.latest, late.recent = late.latest, None, ()
    async with panel(machine, "ddp", sets=("devices.pick=2",), sampler=late,
                     ready=False) as (pilot, screen):
        await until(pilot, lambda: screen.form.ready)
        for _ in range(3 * MOST_WAITS):
            screen.devices.look()
            await pilot.pause()
        assert screen.draft.ids == []
        late.latest, late.recent = seen, (seen,) * 3
        await until(pilot, lambda: screen.draft.ids == ["0", "1"])


async def test_why_fewer_than_the_preset_asks_for_are_ticked():
    card = gpus(1).devices[0]
    part = Device("MIG-a", "mig", f"{card.name} MIG 1g.10gb 1:0", 1, "MIG-a", 10 << 30)
    machine = replace(gpus(1), devices=(card, part))
    async with panel(machine, "ddp", sets=("devices.pick=2",)) as (pilot, screen):
        await until(pilot, lambda: "2 free" in screen_text(pilot.app))
        assert screen.draft.ids == ["0"]
        said = " ".join(shown(screen.devices).replace("│", " ").split())
        assert "but a whole GPU and a MIG slice can't be combined" in said
    async with panel(replace(machine, devices=(card, replace(part, kind="gpu"))), "ddp",
                     sets=("devices.pick=3",)) as (_, screen):
        assert screen.draft.ids == ["0", "MIG-a"]
        assert "can't be combined" not in shown(screen.devices)
