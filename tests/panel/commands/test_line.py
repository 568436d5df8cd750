"""`:`: actions by name, gpu-engine with its output, completion, history."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Log

from gpu_engine.common import only_look, paths
from gpu_engine.runs import waiting
from gpu_panel import readonly
from gpu_panel.commands import line
from gpu_panel.commands.line import CommandLine, meaning
from gpu_panel.commands.output import OutputScreen
from gpu_panel.run.screen import RunScreen
from gpu_panel.run.sheets import AboutRun

from ... import odd_runs
from ...command_line import called
from ...conftest import slots
from ...trust.watching import changed, noted, tree
from ..panel_kit import panel, screen_text, until
from ..run_kit import T0, trained


@pytest.mark.parametrize(("typed", "wanted"), [
    ("runs.stop", ("runs.stop", [])), ("runs.sto", ("runs.stop", [])),
    ("gpu-engine runs --filter 'a b'", ("", ["runs", "--filter", "a b"])),
    ("runs.", "runs.: that could be runs.stop, runs.sort"), ("gpu-engine 'x", "No closing"),
    ("rm -rf /", "no such action on this screen; gpu-engine … runs a command")])
def test_what_a_line_means(typed: str, wanted):
    found = meaning(typed, {"runs.stop": "", "runs.sort": ""})
    assert wanted in found if isinstance(wanted, str) else found == wanted


async def test_an_action_by_its_name_and_history(home: Path):
    async with panel(slots(2)) as (pilot, screen):
        app = pilot.app
        before = list(screen.devices.ticked)
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, CommandLine))
        await pilot.press(*"devices.al")
        await until(pilot, lambda: app.screen.query_one(Input)._suggestion == "devices.all")
        await pilot.press("right", "enter")
        await until(pilot, lambda: list(screen.devices.ticked) != before)
        assert line.before() == ["devices.all"]
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, CommandLine))
        await pilot.press("up")
        assert app.screen.query_one(Input).value == "devices.all"
        await pilot.press("down", *"no-such", "enter")
        await until(pilot, lambda: "no such action" in screen_text(app))


async def test_it_is_the_same_key_on_a_runs_screen(home: Path):
    paths.runs_folder().mkdir(parents=True)
    run = trained(paths.runs_folder())
    run.release()
    async with panel(slots(1)) as (pilot, screen):
        app = pilot.app
        await until(pilot, lambda: screen.runs.lines)
        screen.runs.open(run.run)
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        app.screen.pane("log").enter()
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, CommandLine))
        await pilot.press(*"run.abou", "enter")
        await until(pilot, lambda: isinstance(app.screen, AboutRun))


async def test_gpu_engine_shows_its_output_and_completes_as_a_shell(home: Path):
    paths.runs_folder().mkdir(parents=True)
    trained(paths.runs_folder()).release()
    async with panel(slots(1)) as (pilot, _):
        app = pilot.app
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, CommandLine))
        field = app.screen.query_one(Input)
        field.value = "gpu-engine show 3f"
        await until(pilot, lambda: field._suggestion == "gpu-engine show 3f2a")
        field.value = "gpu-engine runs"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen)
                    and "3f2a" in "".join(app.screen.query_one(Log).lines))
        assert "$ gpu-engine runs" in screen_text(app)


async def test_readonly_lets_gpu_engine_look_and_no_more(
        home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readonly, "on", True)
    paths.runs_folder().mkdir(parents=True)
    trained(paths.runs_folder()).release()
    before = tree(home)
    async with panel(slots(1), notifications=True) as (pilot, _):
        async def type_in(line: str) -> None:
            await pilot.press("colon")
            await until(pilot, lambda: isinstance(pilot.app.screen, CommandLine))
            pilot.app.screen.query_one(Input).value = line
            await pilot.press("enter")

        for typed in ("gpu-engine runs rm 3f2a", "gpu-engine runs -n 3 prune --keep 0",
                      "gpu-engine stop 3f2a", "gpu-engine", "launch.start"):
            await type_in(typed)
            await until(pilot, lambda: "--readonly" in screen_text(pilot.app))
            assert not isinstance(pilot.app.screen, OutputScreen)
            pilot.app.clear_notifications()
        await type_in("gpu-engine runs")
        await until(pilot, lambda: isinstance(pilot.app.screen, OutputScreen)
                    and "3f2a" in "".join(pilot.app.screen.query_one(Log).lines))
    assert not line.before()
    assert not changed(before, tree(home))


@pytest.mark.parametrize("command", readonly.READS)
def test_what_readonly_allows_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch,
                                              command: str):
    monkeypatch.setenv(only_look.VARIABLE, "1")
    paths.runs_folder().mkdir(parents=True)
    run = trained(paths.runs_folder())
    run.state("completed", ended=T0 + 60)
    run.release()
    monkeypatch.setattr(waiting, "any_here", lambda folder: True)  # a queue that nobody serves
    other = odd_runs.ended()
    for each in (run.run, other):
        (each.path / "spec.toml").write_text('name = "toy"')
    words = ["3f2a", other.id] if command == "compare" else []
    before = tree(home)
    with noted("gpu_engine.devices.probe.child") as seen:
        found = called(command, *words)
    assert found.returncode == 0, found.stderr
    assert not changed(before, tree(home))
    assert not seen.started
