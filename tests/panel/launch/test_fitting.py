"""ctrl+t in the form: `gpu-engine fit` tries what fits, and its proposal goes into the form."""

from __future__ import annotations

import json
import sys

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.launching import fit
from gpu_engine.runs import folder
from gpu_engine.spec import presets
from gpu_panel.common.command_dialog import CommandDialog
from gpu_panel.common.dialogs import Message
from gpu_panel.launch import fitting
from gpu_panel.launch.fitting import FitDialog

from ...conftest import gpus, slots, wait_for
from ..panel_kit import fields_of, on_top, panel, press, says, screen_text, settled, until

ANSWER = {
    "largest": 96, "knee": 16, "proposal": {
        "size": 64, "meaning": "per_gpu", "accumulate": 8, "replicas": 2, "global_size": 1024,
        "per_gpu": 64},
    "trials": [{"size": 4, "fits": True, "memory": 351 << 20, "samples_per_s": 50.0, "why": None},
               {"size": 96, "fits": True, "memory": 614 << 20, "samples_per_s": 52.0, "why": None},
               {"size": 144, "fits": False, "memory": None, "samples_per_s": None,
                "why": "rank 0: out of memory"}]}
PROGRAM = """
import pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / "asked").write_text(repr(sys.argv[2:]) + open(sys.argv[3]).read())
print("4 per slot: fits, 351 MiB, 50.0 examples/s", file=sys.stderr)
print("96 per slot: ", end="", file=sys.stderr, flush=True)
while not (here / "go").exists():
    time.sleep(0.01)
print((here / "answer").read_text())
"""


async def begun(pilot, screen, memory):
    """Go into the form, and try with so much memory."""
    screen.action_pane("form")
    await settled(pilot, screen)
    await pilot.press("ctrl+t")
    await on_top(pilot, CommandDialog, "for 2 ranks")
    assert list(fields_of(pilot.app)) == ["--memory"]
    await pilot.press(*memory, "enter")


async def test_what_is_tried_is_shown_and_the_proposal_put_into_the_form_or_not(
        monkeypatch, tmp_path):
    (tmp_path / "answer").write_text(json.dumps(ANSWER))
    (tmp_path / "fit.py").write_text(PROGRAM)
    monkeypatch.setattr(fitting, "own_program", lambda module, *words: [
        sys.executable, str(tmp_path / "fit.py"), str(tmp_path), *words])
    async with panel(slots(2), "default", size=(80, 24), sets=("batch.size=1024",)
                     ) as (pilot, screen):
        await begun(pilot, screen, "lots")
        await says(pilot, "lots: no size of memory; give 2GiB")
        await pilot.press("ctrl+u", *"2GiB", "enter")
        await on_top(pilot, FitDialog, "4 per slot: fits, 351 MiB, 50.0 examples/s",
                     "96 per slot: …")
        asked = (tmp_path / "asked").read_text()
        assert asked.startswith("['fit', '/dev/stdin', '--json', '--memory', '2GiB']")
        assert "size = 1024" in asked
        await pilot.press("enter")  # nothing is proposed yet
        (tmp_path / "go").touch()
        await on_top(pilot, FitDialog, "━━━ knee", "fits: up to 96 per slot; 144 does not: rank",
                     "64 per slot × 2 slots × 8", "in place of", "512 per slot")
        await pilot.press("escape")
        await on_top(pilot, screen)
        await settled(pilot, screen)
        assert screen.draft.text("batch.size") == "1024"

        await begun(pilot, screen, "2GiB")
        await on_top(pilot, FitDialog, "Put it into")
        await pilot.press("enter")
        await on_top(pilot, screen)
        await settled(pilot, screen)
        batch = screen.review.plan.batch
        assert (batch.per_gpu, batch.accumulate, batch.global_size) == (64, 8, 1024)

        await begun(pilot, screen, "2GiB")
        await on_top(pilot, FitDialog, "as the form has it")


SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)", "{batch.per_gpu}")


@pytest.mark.parametrize("key", ["escape", "ctrl+q"])
async def test_one_that_is_left_in_the_middle_leaves_nothing(key):
    async with panel(slots(2), command=SLEEPS, sets=("devices.pick=2", "parallel.mode=ddp"),
                     size=(160, 48)) as (pilot, screen):
        await begun(pilot, screen, "1GiB")
        await until(pilot, lambda: any(run.state().state == "running" for run in folder.all_runs()))
        await until(pilot, lambda: screen.runs.live)
        if key == "ctrl+q":
            assert screen.going_on == ""
        await pilot.press(key)
        if key == "escape":
            await on_top(pilot, screen)
    wait_for(lambda: folder.all_runs() == [] and leases.holders(paths.leases_folder()) == {})


async def test_what_can_not_be_tried_is_said():
    async with panel(slots(2), "default", size=(80, 24), notifications=True) as (pilot, screen):
        with leases.acquire(paths.leases_folder(), slots(2).devices[:1], "3f2a"):
            await begun(pilot, screen, "1GiB")
            await on_top(pilot, FitDialog, "CPU 0 is held by run 3f2a", "or wait until it ends")
            assert "share" not in screen_text(pilot.app)
            await pilot.press("escape")
            await on_top(pilot, screen)
        screen.draft.put("task.command", "true")
        await pilot.press("ctrl+t")
        await on_top(pilot, Message, "write {batch.per_gpu}")
        await pilot.press("escape")
        screen.devices.tick(())
        await settled(pilot, screen)
        await pilot.press("ctrl+t")
        await says(pilot, "Can't try what fits", "choose at least one device")


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_what_is_known_stands_at_the_batch(size):
    paths.home().mkdir()
    fit.remember(presets.load("ddp").spec, gpus(2).devices, 48, None)
    async with panel(gpus(2), "ddp", size=size) as (pilot, screen):
        await press(pilot, screen, "2")
        screen.query_one("#f-batch-size").focus()
        await says(pilot, "Batch  size", "       fits: up to 48 per GPU (tried just now)")
