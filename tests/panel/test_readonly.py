"""`gpu-panel --readonly`: nothing is started, signalled, removed or written, whatever key it is."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widget import Widget

import gpu_panel
from gpu_engine.runs import stacks, waiting
from gpu_panel import keys, readonly
from gpu_panel.launch import runs
from gpu_panel.run.screen import RunScreen

from ..conftest import slots
from ..queue.kit import queue
from ..trust.watching import changed, noted, tree
from .panel_kit import panel, screen_text, until
from .run_kit import listed, on_top

SHOWS = """
    Choice: move open
    CommandDialog: cancel submit
    CurveView: cross log_scale smooth whole zoom
    CurvesPane: axis value
    DevicesPane: move_rank other_kind tick tick_all
    DevicesPane: tick_free wait wait_any
    FilterInput: keep leave
    FitDialog: leave take
    FormPane: focus_next focus_previous leave page presets
    HelpScreen: close
    LaunchScreen: details jump leave other_device
    LaunchTaken: wait
    LogPane: copy filter find find_next leave next_rank source
    OutputScreen: close copy
    PaneScreen: back on_pane pane
    PanelApp: command_palette help quit redraw tell
    PlanPane: copy processes
    RanksPane: choose sort
    Rows: cursor_down page_down page_up scroll_down scroll_end scroll_home scroll_up
    RunScreen: about again back copy_command curve maximize
    RunsPane: again best clear columns compare filter fold mark mark_all open order turn
    SeveralPane: compare open scroll turn value
    SeveralScreen: copy
"""
"""Actions that change nothing but what is shown, or answer a dialog that only a refused action
opens."""


def classes() -> Iterator[type]:
    for found in pkgutil.walk_packages(gpu_panel.__path__, "gpu_panel."):
        module = importlib.import_module(found.name)
        yield from (one for _, one in inspect.getmembers(module, inspect.isclass)
                    if one.__module__ == module.__name__)


def test_every_action_changes_something_or_is_known_to_only_show():
    shows = {(name.strip(), action) for line in SHOWS.strip().splitlines()
             for names, _, actions in [line.partition(":")]
             for name in names.split(",") for action in actions.split()}
    there = {(cls.__name__, name.removeprefix("action_")): cls for cls in classes()
             if issubclass(cls, DOMNode)
             for name in vars(cls) if name.startswith("action_")}
    changes = {one for one, cls in there.items() if one[1] in getattr(cls, "CHANGES", ())}
    assert changes | shows == set(there)
    assert not changes & shows
    for cls in classes():
        named = getattr(cls, "CHANGES", frozenset())
        assert all(hasattr(cls, f"action_{name}") for name in named), cls
        assert all(getattr(base, "CHANGES", frozenset()) <= named for base in cls.__bases__), cls


@pytest.fixture
def only_shows(monkeypatch):
    monkeypatch.setattr(readonly, "on", True)


_MOVES = {"up", "down", "left", "right", "escape", "tab"}


async def _press(pilot: Pilot[None], found: Iterable[keys.Key], where: Widget):
    """Press each of these keys with the focus on `where`, and leave what it opens."""
    app = pilot.app
    under = len(app.screen_stack)
    for key in {key.keys.split(",")[0]: None for key in found}:
        if key not in _MOVES:
            where.focus()
            await pilot.press(key)
            while len(app.screen_stack) > under:
                assert "Something went wrong" not in screen_text(app)
                await pilot.press("escape")
            if len(app.screen_stack) < under:
                return


@pytest.mark.timeout(180)
@pytest.mark.parametrize("on", [True, False])
async def test_whatever_key_is_pressed_nothing_changes(home, monkeypatch, on):
    monkeypatch.setattr(readonly, "on", on)
    signalled = []
    monkeypatch.setattr(os, "kill", lambda *given: signalled.append(given))
    monkeypatch.setattr(stacks, "request", lambda *given: signalled.append(given))
    asked = set()  # what the panel looks after by itself
    monkeypatch.setattr(runs, "_look_at", lambda runs: asked.add("all places"))
    monkeypatch.setattr(runs, "_LOOK", 0.05)
    run, waits = listed(), queue("true", begin=False)
    waiting.write(waits.path, replace(waiting.read(waits.path), submitted=1.0))  # nobody starts it
    before = tree(home)
    with noted() as seen:
        async with panel(slots(2), notifications=True) as (pilot, screen):
            await until(pilot, lambda: screen.runs.lines and (on or asked))
            if not on:
                await pilot.press("ctrl+y")
            for pane in (screen.devices, screen.runs) if on else ():
                await _press(pilot, pane.KEYS, pane)
            await _press(pilot, screen.KEYS if on else (), screen.devices)
            screen.devices.focus()
            await pilot.press("home", "space")  # the form is kept as the panel closes
            screen.runs.open(run.run)
            await on_top(pilot, RunScreen)
            shown = pilot.app.screen
            assert isinstance(shown, RunScreen)
            await until(pilot, lambda: shown.store.caught_up)
            await _press(pilot, shown.KEYS if on else (), shown.pane("loss"))
    # What only reads the devices changes nothing; the test before may have asked for it.
    assert bool([s for s in seen.started if "gpu_engine.devices.probe_child" not in s]) is not on
    assert not signalled
    assert not (asked and on)
    assert bool(changed(before, tree(home))) is not on


async def test_a_refused_key_says_why_and_is_grey(home, only_shows):
    async with panel(slots(2), notifications=True) as (pilot, screen):
        assert "gpu-panel read-only" in screen_text(pilot.app)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "opened with --readonly" in " ".join(
            screen_text(pilot.app).split()))
        assert not list(home.glob("runs/*"))
        offered = [c.title for c in pilot.app.get_system_commands(screen)]
        assert not any(title.startswith(("launch", "save")) for title in offered)
        assert any(title.startswith(("freest", "presets")) for title in offered)


def test_the_option_says_so(monkeypatch):
    from gpu_panel import __main__ as opening

    monkeypatch.setattr(readonly, "on", False)
    opening.main.main(["--readonly", "--keys"], prog_name="gpu-panel")
    assert readonly.on
    assert keys.KEYS
