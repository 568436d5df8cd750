"""The order of ticking is the order of the ranks: it is shown, kept, and can be changed."""

from __future__ import annotations

import re
from dataclasses import replace

from gpu_engine.common import paths
from gpu_engine.devices import leases as lease
from gpu_engine.devices.records import Device
from gpu_panel.commands import own
from gpu_panel.common.dialogs import AskLine, Confirm
from gpu_panel.launch.devices import MOST_WAITS, DevicesPane

from ....conftest import gpus
from ...machines import lab
from ...panel_kit import (
    StillSampler,
    looked,
    on_top,
    panel,
    press,
    says,
    screen_text,
    settled,
    shown,
    until,
)


def roles(table: DevicesPane) -> dict[str, str]:
    """Device id → its rank, behind an arrow, or whether it is free."""
    found, last = {}, ""
    for line in (line.strip("│ ") for line in shown(table).splitlines()):
        if line[:1] in "☐▣" and line:
            last = line.split()[1]
            rank = re.search(r"→(r\d+|cuda:\d+) ", line)
            found[last] = re.sub("^r", "rank ", rank[1]) if rank else "free" * ("free" in line)
    return found


async def test_a_presets_order_is_kept_and_shown():
    async with panel(gpus(8), "ddp", sets=("devices.ids=7,2,5",), size=(80, 24)) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        assert screen.draft.ids == ["7", "2", "5"]
        assert "ranks in your order" in screen_text(pilot.app)
        told = roles(table)
        assert (told["2"], told["5"], told["0"]) == ("rank 1", "rank 2", "free")
        await pilot.press("space")  # GPU 0
        await settled(pilot, screen)
        assert screen.draft.ids == ["7", "2", "5", "0"]
        assert roles(table)["0"] == "rank 3"
        assert "GPU 7 → cuda:0 rank 0   GPU 2 → cuda:1 rank 1   GPU 5 → cuda:2 rank 2   " \
            "GPU 0 → cuda:3 rank 3" in "   ".join(r.sentence() for r in screen.review.plan.ranks)
        assert screen.review.plan.processes[0].env["CUDA_VISIBLE_DEVICES"] == "7,2,5,0"
        await press(pilot, screen, "space")
        assert screen.draft.ids == ["7", "2", "5"]


async def test_it_can_be_chosen():
    async with panel(gpus(4), "ddp", sets=("devices.ids=3,1",)) as (pilot, screen):
        table = screen.query_one(DevicesPane)
        await press(pilot, screen, "a")
        assert screen.draft.ids == ["3", "1", "0", "2"]
        await pilot.press("less_than_sign")  # GPU 0, under the cursor
        await settled(pilot, screen)
        assert screen.draft.ids == ["3", "0", "1", "2"]
        await press(pilot, screen, "less_than_sign", "less_than_sign", "greater_than_sign")
        assert screen.draft.ids == ["3", "0", "1", "2"]
        assert roles(table) == {"0": "rank 1", "1": "rank 2", "2": "rank 3", "3": "rank 0"}
        assert "in your order" in screen_text(pilot.app)


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


async def test_all_free_ones_are_ticked_at_a_key_and_unticked_at_the_next():
    machine = gpus(3)
    with lease.acquire(paths.leases_folder(), machine.devices[1:2], "3f2a"):
        async with panel(machine, "ddp", sets=("devices.ids=0",)) as (pilot, screen):
            await until(pilot, lambda: screen.source.freedom
                        and screen.source.freedom["1"].state == "leased")
            await press(pilot, screen, "a")
            assert screen.draft.ids == ["0", "2"]
            await press(pilot, screen, "a")
            assert screen.draft.ids == []
            with lease.acquire(paths.leases_folder(), machine.devices[::2], "4a5b"):
                screen.devices.tick(["1"])
                await until(pilot, lambda: screen.source.freedom["2"].state == "leased")
                await press(pilot, screen, "a")
                assert screen.draft.ids == ["1"]  # nothing is free: what is ticked stays


# --- what goes on behind a dialog, and what is seen of it -------------------------------------


async def test_the_devices_behind_a_dialog_go_on():
    machine = gpus(2)
    sampler = StillSampler(machine)
    async with panel(machine, sampler=sampler) as (pilot, screen):
        pilot.app.push_screen(Confirm("Close the panel", "?", yes="Close it"))
        await on_top(pilot, Confirm)
        busy = tuple(replace(s, utilization=0.87) for s in sampler.latest.samples)
        sampler.latest = replace(sampler.latest, samples=busy)
        sampler.recent = (*sampler.recent, sampler.latest)
        await until(pilot, lambda: "87 %" in shown(screen.devices))
        await says(pilot, "87 %")


# --- what a preset asks for, where the driver is slow -------------------------------------------

async def test_the_freest_are_ticked_however_long_the_first_look_takes():
    machine = gpus(3)
    late = StillSampler(machine)
    seen, late.latest, late.recent = late.latest, None, ()
    async with panel(machine, "ddp", sets=("devices.pick=2",), sampler=late,
                     ready=False) as (pilot, screen):
        await until(pilot, lambda: screen.form.ready)
        for _ in range(3 * MOST_WAITS):
            screen.devices.poll()
            await pilot.pause()
        assert screen.draft.ids == []
        late.latest, late.recent = seen, (seen,) * 3
        await until(pilot, lambda: screen.draft.ids == ["0", "1"])


async def test_why_fewer_than_the_preset_asks_for_are_ticked():
    card = gpus(1).devices[0]
    part = Device("MIG-a", "mig", f"{card.name} MIG 1g.10gb 1:0", 1, "MIG-a", 10 << 30)
    machine = replace(gpus(1), devices=(card, part))
    async with panel(machine, "ddp", sets=("devices.pick=2",)) as (pilot, screen):
        await says(pilot, "2 free")
        assert screen.draft.ids == ["0"]
        said = " ".join(shown(screen.devices).replace("│", " ").split())
        assert "asks for the 2 freest devices, and 1 can be taken" in said
    async with panel(replace(machine, devices=(card, replace(part, kind="gpu"))), "ddp",
                     sets=("devices.pick=3",)) as (_, screen):
        assert screen.draft.ids == ["0", "MIG-a"]
        assert "be combined" not in shown(screen.devices)


async def test_a_device_is_held_and_released_and_its_use_shown_by_the_commands(monkeypatch):
    typed = []
    monkeypatch.setattr(own, "engine", lambda app, *words: typed.append(words))
    async with panel(gpus(2), hosts=lab()) as (pilot, screen):
        await looked(pilot, screen)
        await pilot.press("down", "h")
        await on_top(pilot, AskLine)
        await pilot.press(*"2h to read", "enter")
        await until(pilot, lambda: typed)
        await pilot.press("r", "U", "end")
        screen.devices.cursor = screen.devices.keys.index("gpu1 1")
        await pilot.press("r")
        await until(pilot, lambda: len(typed) == 4)
        assert typed == [("hold", "--devices", "1", "--for", "2h", "--why", "to read"),
                         ("release", "1"), ("usage",), ("release", "gpu1:1")]
