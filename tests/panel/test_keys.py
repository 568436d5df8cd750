"""The table of keys, and what follows from it: bindings, help, palette."""

from __future__ import annotations

import importlib
import pkgutil

import click
import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Static

import gpu_panel
from gpu_engine.common import paths
from gpu_panel import keys
from gpu_panel.app import PanelApp
from gpu_panel.common.choice import Choice
from gpu_panel.common.help import HelpScreen
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.rows import Rows
from gpu_panel.launch.screen import LaunchScreen
from gpu_panel.run.screen import RunScreen
from gpu_panel.several.screen import SeveralScreen

from ..conftest import slots
from .panel_kit import panel, until
from .run_kit import T0, reached, trained


def test_every_key_has_its_own_id():
    assert len({k.id for k in keys.KEYS}) == len(keys.KEYS)


def ours() -> list[type[DOMNode]]:
    """Every screen and widget of the panel."""
    for module in pkgutil.walk_packages(gpu_panel.__path__, "gpu_panel."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[DOMNode]] = []
    waiting: list[type[DOMNode]] = [DOMNode]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if each.__module__.startswith("gpu_panel."):
            found.append(each)
    return found


def test_no_key_of_a_screen_is_bound_past_the_table():
    known = {k.id for k in keys.KEYS}
    allowed = known | {k.id for each in ours() if issubclass(each, Pane) for k in each.KEYS} \
        | {k.id for each in ours() if issubclass(each, PaneScreen) for k in each.KEYS}
    bound: set[str | None] = set()
    for each in ours():
        # A dialog shows its keys in its border; a field has the usual keys of its kind.
        # So has a list: letters beside the arrows.
        if issubclass(each, ModalScreen | Choice) or each is Rows:
            continue
        for binding in each.__dict__.get("BINDINGS", ()):
            assert isinstance(binding, Binding), (each, binding)
            assert binding.id in allowed, (each, binding)
            bound.add(binding.id)
    assert known <= bound


def test_the_scopes_on_a_screen_are_those_of_its_panes():
    """They are known before the screens are, whose classes take their bindings from the table."""
    assert set(keys.SCREENS) == {
        frozenset({screen.SCOPE, *(key.scope for pane in screen.PANES for key in pane.KEYS)})
        for screen in (LaunchScreen, RunScreen, SeveralScreen)}


def test_no_key_does_two_things_on_one_screen():
    for screen in (each for each in ours() if issubclass(each, PaneScreen)):
        typed = [one for key in (*screen.KEYS, *keys.of("app")) for one in key.keys.split(",")]
        assert len(set(typed)) == len(typed), screen


async def test_each_key_is_in_the_help_of_its_screen(tmp_path):
    async with panel(slots(1)) as (pilot, launch):
        run = RunScreen(trained(tmp_path).run)
        await pilot.app.push_screen(run)
        of_launch, of_run, *others = (
            {k.id for part in screen.key_sections() for k in part.keys}
            for screen in (launch, run, SeveralScreen))
        assert {k.id for k in keys.KEYS} <= of_launch.union(of_run, *others)
        assert of_launch & of_run == {k.id for k in keys.of("app")}
        assert {"log.find", "chart.whole", "run.stop", "pane.ranks"} <= of_run
        await pilot.press("question_mark")
        await pilot.pause()
        told = str(pilot.app.screen.query_one(".sheet Static", Static).content)
        flat = " ".join(told.split())
        assert all(k.tooltip in flat for part in run.key_sections() for k in part.keys)


async def test_the_palette_offers_what_can_be_done_with_a_run(tmp_path):
    run = trained(tmp_path)
    app = PanelApp(inventory=slots(1))
    async with app.run_test(size=(160, 48)) as pilot:
        screen = RunScreen(run.run, clock=lambda: T0 + 200)
        await app.push_screen(screen)
        await screen.store.wait_for(reached(1, 99))
        screen.paint()

        def offered():
            return {c.title: c for c in app.get_system_commands(screen)}

        assert {"stop (s)", "about (i)", "log scale (l)", "smooth (m)", "stacks (d)", "find (/)",
                "next log (])"} <= set(offered())
        assert "resume (u)" not in offered()
        await offered()["log scale (l)"].callback()
        await until(pilot, lambda: "log" in (screen.query_one("#loss").border_subtitle or ""))
        run.state("completed", ended=T0 + 100)
        run.release()
        await screen.store.poll_now()
        screen.paint()
        await pilot.pause()
        assert "resume (u)" in offered()
        assert "stop (s)" not in offered()


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_help_wraps_in_its_own_column(size):
    async with panel(slots(2), size=size) as (pilot, _):
        await pilot.press("question_mark")
        await until(pilot, lambda: pilot.app.screen.query(".sheet Static"))
        sheet = pilot.app.screen.query_one(Static)
        await until(pilot, lambda: "Devices" in str(sheet.content))
        lines = str(sheet.content).split("\n")
        column = next(i for i, c in enumerate(lines[-2]) if i > 10 and c != " ")
        assert all(len(line) <= sheet.size.width for line in lines if line.startswith("  "))
        assert size[0] > 80 or any(line.startswith(" " * column) for line in lines)


def test_the_command_that_does_the_same_as_a_key_exists():
    from gpu_engine.cli import cli

    ids = {key.id for key in keys.KEYS}
    for action, line in keys.COMMANDS.items():
        assert action in ids, action
        program, *words = line.split()
        assert program == "gpu-engine"
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-") \
                and (inner := command.get_command(click.Context(command), words[0])) is not None:
            command, words = inner, words[1:]
        assert command is not cli, line
        known = {name for one in command.params for name in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


async def test_the_help_shows_the_command_with_the_run_at_hand():
    folder = paths.runs_folder()
    folder.mkdir(parents=True)
    trained(folder).release()
    async with panel(slots(1)) as (pilot, screen):
        await until(pilot, lambda: screen.runs.line_at_cursor)
        screen.runs.focus()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen) and
                    "$ gpu-engine stop 3f2a" in " ".join(
                        str(pilot.app.screen.query_one(Static).content).split()))
