"""Hostile run folders in the panel: the list, the run screen, comparing, the sweep. As with the
commands, nothing is executed, signalled, written outside or sent to the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.screen import Screen

from gpu_engine.runs.folder import Run
from gpu_panel.common.errors import log_path
from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.screen import RunScreen
from gpu_panel.several.screen import SeveralScreen
from gpu_panel.theme import ThemedApp

from ..conftest import slots
from ..panel.panel_kit import panel, screen_text
from .hostile_runs import CASES, FOLDERS, GOOD, HEAVY, KINDS, NAMES, OTHERS, SPECIAL, make
from .watching import Watch, end_of_traceback, noted

SHOWN = ("state.json", "plan.json", "notes.json", "spec.toml", "devices.jsonl",
         "ranks/00000.jsonl", "ranks/00000.log", "hosts/a.json",
         "queue.json", "slurm.json")
OPENED = (
    *(f"{name} is {kind}" for name in SHOWN for kind in KINDS if "link" in kind or "FIFO" in kind),
    *(f"{name} has escapes in every text" for name in SHOWN if name.endswith(".json")),
    *(f"{name} has nan for every number" for name in SHOWN if name.endswith(".json")),
    *(name for name in OTHERS if name.partition(" ")[0] in FOLDERS), *SPECIAL,
    *NAMES)
"""Whose screen is opened; the others are only in the list, as what is read of them is the same."""
_AT_ONCE = 6
_PATIENCE = 300.0
"""Seconds for what is awaited on a screen; whatever reads a FIFO waits for ever."""


class _Mini(ThemedApp):
    """An app with one screen."""

    def __init__(self, screen: Screen[Any]):
        super().__init__()
        self.animation_level = "none"
        self.first = screen

    def on_mount(self):
        self.push_screen(self.first)


async def _seen(
        watch: Watch, label: str, screen: Screen[Any], ready: Callable[[], object], keys:
        Sequence[str]=()):
    """Open the screen, wait until it is `ready`, press keys, and note what is wrong."""
    with noted() as found:
        app = _Mini(screen)
        try:
            async with app.run_test(size=(160, 48), notifications=True) as pilot:
                async with asyncio.timeout(_PATIENCE):
                    while not ready() and app._exception is None \
                            and "no longer reads" not in screen_text(app):
                        await asyncio.sleep(0.01)
                for key in (*keys, ""):
                    await pilot.pause()
                    watch.judge_text(label, screen_text(app).replace("\n", " "))
                    if "Something went wrong" in screen_text(app):
                        break
                    if "no longer reads" in screen_text(app):
                        watch.say(label, "can't be read any more")
                        break
                    if key:
                        await pilot.press(key)
        except TimeoutError:
            watch.say(label, f"nothing came for {_PATIENCE:.0f} s")
        except Exception as err:  # noqa: BLE001 - it would end the panel
            watch.say(label, f"ends the panel: {type(err).__name__}: {str(err)[:200]}")
    if log_path().exists():
        watch.say(label, "a fault: " + end_of_traceback(log_path().read_text()))
        log_path().unlink()
    watch.judge(label, found)


@pytest.mark.parametrize("names", [OPENED[i:i + _AT_ONCE] for i in range(0, len(OPENED), _AT_ONCE)],
                         ids=lambda names: names[0])
async def test_run_screen(names, world, watch):
    made = {name: make(name, world) for name in names}
    watching = watch()
    for name, path in made.items():
        screen = RunScreen(Run(path))
        await _seen(watching, f"the screen of {name}", screen,
                    lambda screen=screen: screen.store.caught_up)
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))


async def test_comparing(world, watch):
    names = [name for name in OPENED if name not in HEAVY]
    made = [make(name, world) for name in names]
    watching = watch()
    for begin in range(0, len(made), 8):
        screen = SeveralScreen([Run(world.runs / GOOD), *map(Run, made[begin:begin + 8])])
        await _seen(watching, f"comparing {'; '.join(names[begin:begin + 8])}", screen,
                    lambda screen=screen: screen.store.caught_up)
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))


async def test_the_sweep_of_all(world, watch):
    for name in OPENED:
        if name not in HEAVY:
            make(name, world)
    watching = watch()
    screen = SeveralScreen(sweep="s1")
    await _seen(watching, "the sweep", screen, lambda: screen.store.group is not None,
                ["enter", "down", "enter", "end"])
    assert not watching.problems, "\n".join(watching.problems)


async def test_the_list_of_all(world, watch):
    """Each is a line, the good run too, and the list can be looked through."""
    made = {make(name, world).name: name for name in (*CASES, *NAMES) if name not in HEAVY}
    watching = watch()
    with noted() as found:
        async with panel(slots(1), size=(160, 60), ready=False) as (pilot, screen):
            table = screen.query_one(RunsPane)
            async with asyncio.timeout(_PATIENCE):
                while table.lines is None:
                    await asyncio.sleep(0.01)
                while GOOD not in {line.id for line in table.lines}:
                    await asyncio.sleep(0.01)
            there = {line.id for line in table.lines}
            await pilot.press("escape", "4")
            for key in ["right", *["pagedown"] * 12, "end", ""]:
                await pilot.pause()
                watching.judge_text("the list", screen_text(pilot.app).replace("\n", " "))
                if key:
                    await pilot.press(key)
    if log_path().exists():
        watching.say("the list", "a fault: " + end_of_traceback(log_path().read_text()))
    watching.judge("the list", found)
    listed = [line for line in there if line in made]
    assert not watching.problems, "\n".join(watching.problems)
    assert len(listed) > 100
