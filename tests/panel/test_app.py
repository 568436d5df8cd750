"""Errors while the panel is open: a driver that hangs, mistakes of a person, faults of ours."""

from __future__ import annotations

import threading
import time

import pytest

from gpu_engine.common.errors import Problem, SpecError
from gpu_panel.common.dialogs import Message

from ..conftest import gpus, slots
from .panel_kit import StillSampler, panel, screen_text, until

pytestmark = pytest.mark.usefixtures("home")


class Hanging(StillSampler):
    """A sampler whose driver never answers, so that even close() hangs."""

    def close(self) -> None:
        threading.Event().wait()


async def test_a_sampler_that_hangs_does_not_keep_the_panel_open():
    machine = gpus(1)
    async with panel(machine, sampler=Hanging(machine)) as (pilot, _):
        began = time.monotonic()
        await pilot.press("ctrl+q")
    assert time.monotonic() - began < 10


async def test_a_driver_that_says_nothing_is_said():
    machine = gpus(1)
    sampler = StillSampler(machine, age=12.0, problem="the driver has not answered for 12 s")
    async with panel(machine, sampler=sampler) as (pilot, _):
        await until(pilot, lambda: "12 s" in screen_text(pilot.app))


async def test_a_mistake_of_the_persons_has_no_traceback(home):
    async with panel(slots(1)) as (pilot, screen):
        async def fail() -> None:
            raise SpecError([Problem("batch.size", 3, "[bold]no[/]\x1b]52;c;AA\x07")])

        screen.action_fail = fail
        await pilot.app.run_action("fail", screen)
        await pilot.pause()
        assert isinstance(pilot.app.screen, Message)
        assert "[bold]no[/]" in screen_text(pilot.app)
        assert not (home / "panel.log").exists()


async def test_a_fault_of_ours_goes_to_the_log(home):
    async with panel(slots(1)) as (pilot, screen):
        def fail() -> None:
            raise RuntimeError("wires crossed")

        screen.action_fail = fail
        await pilot.app.run_action("fail", screen)
        await pilot.pause()
        assert "wires crossed" in screen_text(pilot.app)
        assert "Traceback" in (home / "panel.log").read_text()
