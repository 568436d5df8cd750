"""Slurm as a place for the form's run, with stand-ins for its commands."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from gpu_engine.events.paths import events_path
from gpu_engine.places.verbs import launch
from gpu_engine.plan.records import RankPlan
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import sweep
from gpu_engine.slurm import submit
from gpu_engine.spec.catalog import BUILTIN
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import TaskSpec
from gpu_panel.common.command_dialog import MORE, CommandDialog
from gpu_panel.common.dialogs import Message, Sheet
from gpu_panel.launch import row_keys
from gpu_panel.launch.draft import Draft
from gpu_panel.run.resume import ResumeOptions
from gpu_panel.run.snapshot import look

from ...conftest import slots
from ...plans import plan
from ...slurm.test_watch import Programs
from ..panel_kit import (
    fields_of,
    on_top,
    panel,
    press,
    problems_below,
    screen_text,
    settled,
    shown,
    type_into,
    until,
)

CAN_BE_ASKED = submit.can_be_asked
SLEEPS = ("sleep", "60")


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Programs:
    """Slurm whose queue moves no job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(submit, "can_be_asked", CAN_BE_ASKED)
    programs = Programs(folder)
    programs.lists(*((str(i), "PENDING", "0", "N/A", "N/A", "", "Resources")
                     for i in range(1, 100)))
    for name in ("sacct", "scancel", "scontrol"):
        programs.put(name, "")
    programs.put("sbatch", f"wc -l < {folder}/calls")
    return programs


def spec(**devices):
    return from_dict({"task": {"command": list(SLEEPS)}, "devices": devices, "parallel": {
        "mode": "ddp", "nodes": 2}, "run": {"sbatch": {"account": "vision lab", "exclusive": ""}}})


@pytest.mark.parametrize(("devices", "count"), [
    ({"hosts": ["slurm"]}, ""), ({"hosts": ["slurm"], "pick": 2}, "2"),
    ({"hosts": ["slurm:a100"], "pick": 2}, "2"), ({"hosts": ["slurm:cpu:0,cpu:1"]}, "2")])
def test_a_spec_for_slurm_comes_back_as_it_was_and_can_be_changed(home, devices, count):
    asked = spec(**devices)
    draft = Draft(asked, run="3f2a")
    assert draft.spec() == draft.to_save(slots(2)) == asked
    assert (draft.changed, draft.hosts, draft.any_of, draft.picks) == (False, [], [], None)
    assert draft.mode == "multinode"
    assert draft.text("devices.pick") == count
    assert draft.text("run.sbatch") == "account='vision lab' exclusive"
    draft.put("devices.pick", "3")
    assert draft.changed
    assert len(str(draft.to_save(None).devices.hosts).split(",")) == \
        (3 if "cpu" in str(devices) else 1)
    assert draft.spec().devices.pick == (None if "cpu" in str(devices) else 3)
    draft.put("parallel.mode", "ddp")  # which several nodes would not leave
    assert (draft.mode, draft.spec().parallel.nodes) == ("ddp", 1)
    draft.tick(["0"])  # of this machine: without what only Slurm is asked for
    here = draft.spec()
    assert (here.devices.ids, here.devices.hosts, here.devices.pick) == (["0"], None, None)
    assert here.run.sbatch == {}
    draft.tick_slurm()
    assert draft.spec().run == asked.run
    assert str(draft.devices["hosts"]).partition(":cpu")[0] == \
        str(devices["hosts"]).partition(":cpu")[0]


async def test_slurm_is_ticked_alone_and_a_job_is_submitted(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with panel(slots(2), command=SLEEPS, notifications=True) as (pilot, screen):
        devices = screen.devices
        await until(pilot, lambda: row_keys.SLURM in devices.keys)
        await press(pilot, screen, "down", "down", "a")
        await until(pilot, lambda: "Slurm chooses the devices; the form" in screen_text(pilot.app))
        await press(pilot, screen, "space")
        assert devices.ticked == (row_keys.SLURM,)
        await press(pilot, screen, "up", "space")
        assert devices.ticked == ("cpu:1",)
        await press(pilot, screen, "down", "space", "c")
        await type_into(pilot, screen, "f-parallel-nodes", "2")
        await type_into(pilot, screen, "f-devices-pick", "x")
        assert "expected" in "".join(problems_below(screen))
        assert "expected" not in shown(devices)  # once is enough
        await type_into(pilot, screen, "f-devices-pick", "1")
        await type_into(pilot, screen, "f-run-sbatch", "account=vision nodes=7")
        assert [p.key for p in screen.review.problems] == ["run.sbatch.nodes"]
        assert problems_below(screen)[0].startswith("✗ nodes: the script depends on its own")
        await type_into(pilot, screen, "f-run-sbatch", "account=vision exclusive")
        said = screen_text(pilot.app)
        assert "Slurm chooses: 2 nodes, 1 CPU slot each, account=vision, exclusive" in said
        assert "devices.hosts=slurm:cpu:0" in said
        assert screen.source.hosts == ()  # nobody was asked by ssh

        await pilot.press("ctrl+t")
        await on_top(pilot, Message, "node of Slurm, srun")
        await pilot.press("escape")
        await on_top(pilot, screen)
        await press(pilot, screen, "escape", "ctrl+e")
        await on_top(pilot, Sheet, "#SBATCH --account=vision", "gpu_engine.on_node")
        await pilot.press("escape")
        await on_top(pilot, screen)

        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.lines)
        (run,) = runs.all_runs()
        assert jobs.read(run.path).request == jobs.Request(2, 1, ("account=vision", "exclusive"))
        assert slurm.calls("sbatch")[-1].endswith(f"{run.path}/{jobs.SCRIPT}")
        await until(pilot, lambda: "1 waiting" in shown(screen.runs))
        await until(pilot, lambda: screen.runs.has_focus)
        await press(pilot, screen, "left_square_bracket")
        await until(pilot, lambda: "Slurm orders its own queue" in screen_text(pilot.app))

        await press(pilot, screen, "e")
        await until(pilot, lambda: screen.draft.run == run.id and screen.draft.on_slurm)
        await settled(pilot, screen)
        assert f"the same as run {run.id}" in screen_text(pilot.app)

        screen.devices.focus()
        await pilot.press("V")
        await on_top(pilot, CommandDialog, "It waits in Slurm's queue")
        line = fields_of(pilot.app)
        line["--grid"].value, line[MORE].value = "run.grace=5,6", "--nodes 1 -o nice=3"
        await pilot.press("enter")
        await on_top(pilot, screen)
        members = [r for r in runs.all_runs() if sweep.read(r.path) is not None]
        assert {jobs.read(r.path).request.options for r in members} == {
            ("account=vision", "exclusive", "nice=3")}
        assert len(members) == 2


async def test_without_sbatch_there_is_no_row_and_a_preset_for_slurm_says_what_is_missing(
        monkeypatch):
    async with panel(slots(1), command=SLEEPS) as (_, screen):
        assert screen.devices.keys == ["cpu:0"]
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more, **words: (
        None if name == "sbatch" else which(name, *more, **words)))
    async with panel(slots(1), command=SLEEPS, sets=("devices.hosts=slurm:cpu:0",)) as (
            pilot, screen):
        await until(pilot, lambda: screen.devices.ticked == (row_keys.SLURM,))
        assert row_keys.SLURM in screen.devices.keys
        await pilot.press("ctrl+l")
        await on_top(pilot, Message, "sbatch is not installed on this machine")
        assert runs.all_runs() == []


def test_ranks_of_further_nodes_are_named_once_they_are_known(slurm):
    """The plan is whole only after the job has begun."""
    run = launch(replace(spec(hosts=["slurm:cpu:0"]), task=TaskSpec(BUILTIN[0])))
    (rank,) = plan(1).ranks
    before = run.plan()
    assert before is not None
    assert not before.ranks
    there = [rank, RankPlan(1, 0, 1, rank.devices, "n2")]
    jobs.write_json_inside(run.path, "plan.json", replace(before, ranks=tuple(there)).to_dict())
    seen = look(run, before, 1, ())
    assert seen.plan == before  # nothing tells of it yet
    events_path(run.path, 1).parent.mkdir(exist_ok=True)
    events_path(run.path, 1).touch()
    assert [r.host for r in (look(run, before, 1, ()).plan or before).ranks] == [None, "n2"]
    run.write_state(replace(run.recorded(), state="stopped", ended=1.0))
    jobs.write(run.path, replace(jobs.read(run.path), state="FAILED"))
    (run.checkpoints / "step-5").mkdir(parents=True)
    assert ResumeOptions.read(run).steps == ()  # a job goes on from its newest
