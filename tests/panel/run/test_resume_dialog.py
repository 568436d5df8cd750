"""Starting another attempt on the screen of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.places import verbs as launch
from gpu_engine.spec.read import apply_sets
from gpu_panel.run.resume import ResumeDialog
from gpu_panel.run.screen import RunScreen

from ..run_kit import (
    SMALL,
    T0,
    Written,
    fields_of,
    flat,
    on_top,
    said,
    said_below,
    screen_text,
    settled,
    trained,
    until,
    watched,
)

STEPS = "--set train.steps"
SPEC = '[task]\nuse = "gpu_engine.tasks.bytes_gpt:BytesGPT"\n[train]\nsteps = 400\n'


def ended(folder: Path, state="stopped", spec: str = SPEC, **more) -> Written:
    run = trained(folder)
    run.spec(spec)
    run.state(state, ended=T0 + 60, exit_code=130, **more)
    run.release()
    return run


def saved(run: Written, step: int, **metrics: float):
    folder = run.run.checkpoints / f"step-{step:08d}"
    folder.mkdir(parents=True)
    folder.joinpath("manifest.json").write_text(json.dumps(
        {"step": step, "metrics": metrics, "files": {"state.pt": {"sha256": "", "size": 0}}}))


@pytest.fixture
def asked(monkeypatch):
    """Records the arguments of `launch.resume`, which refuses those in `refused`."""
    calls: list[list[str]] = []

    def resume(run, sets=(), start="newest"):
        apply_sets({}, sets)
        calls.append([*sets, *([f"from {start}"] if start != "newest" else [])])
        if start == "25":
            raise UserError("there is no checkpoint of step 25; there are 100, 200")
        if any("refused" in s for s in sets):
            raise UserError("GPU 0 is held by run 12ab")
        run.write_state(run.state().__class__("queued", run.id, "bytes-gpt", T0 - 2, attempt=2))

    monkeypatch.setattr(launch, "resume", resume)
    return calls


async def test_it_says_from_where_and_this_screen_follows(tmp_path, asked):
    run = ended(tmp_path)
    saved(run, 50)
    saved(run, 99)
    async with watched(run, at=70, size=SMALL) as (pilot, app):
        await pilot.press("u")
        await on_top(pilot, ResumeDialog)
        text = said(app)
        assert "Attempt 1 stopped" in text
        assert "from its newest checkpoint, after step 99" in text
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        assert asked == [[]]
        await settled(pilot, lambda s: s.state.attempt == 2)
        assert "attempt 2" in said(app)


async def test_what_is_refused_is_said_and_nothing_typed_is_lost(tmp_path, asked):
    run = ended(tmp_path, "completed")
    async with watched(run, at=70, size=SMALL) as (pilot, app):
        await pilot.press("u")
        await on_top(pilot, ResumeDialog)
        asks = fields_of(app)
        assert "There is no checkpoint: it starts from the beginning" in said(app)
        await pilot.press("enter")
        await until(pilot, lambda: "all of its 400 steps are done" in said(app))
        assert asked == []
        asks[STEPS].value, asks["--set"].value = "500", "name='refused so'"
        await pilot.press("enter")
        await until(pilot, lambda: "held by run 12ab" in said(app))
        assert asked == [["train.steps=500", "name=refused so"]]
        assert asks["--set"].value == "name='refused so'"
        asks["--set"].value = ""
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        assert asked[-1] == ["train.steps=500"]


async def test_another_checkpoint_can_be_gone_on_from(tmp_path, asked):
    run = ended(tmp_path, "completed")
    for step, loss in ((100, 3.0), (200, 1.0), (300, 1.5), (400, 2.0)):
        saved(run, step, loss=loss)
    async with watched(run, at=70, size=SMALL) as (pilot, app):
        await pilot.press("u")
        await on_top(pilot, ResumeDialog)
        text = flat(screen_text(app).replace("│", " "))
        assert "newest, best, or a step: 100, 200, 300, 400" in text
        await pilot.press("down", *"25", "enter")
        await said_below(pilot, fields_of(app)["--from"])
        await pilot.press(*["backspace"] * 2, *"best", "enter")
        await on_top(pilot, RunScreen)
    assert asked == [["from 25"], ["from best"]]


async def test_an_own_command_has_a_length_of_its_own(tmp_path, asked):
    run = ended(tmp_path, "failed", '[task]\ncommand = ["python", "train.py"]\n')
    async with watched(run, at=70, size=SMALL) as (pilot, app):
        await pilot.press("u")
        await on_top(pilot, ResumeDialog)
        assert "Your command is run again" in said(app)
        assert list(fields_of(app)) == ["--set"]
        await pilot.press(*"nonsense", "enter")
        await until(pilot, lambda: "expected key=value" in said(app))
        await pilot.press("escape")
        await on_top(pilot, RunScreen)
        assert asked == []
