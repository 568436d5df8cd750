"""A disk without room, as the launch screen tells of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.color import Color
from textual.widgets import Button, Static

from gpu_engine.devices.records import HostSample
from gpu_engine.runs import folder as runs

from ...conftest import slots
from ..colours import painted
from ..panel_kit import StillSampler, panel, problems_below, screen_text, settled, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(("free", "said", "colour"), [
    (812 << 30, "disk 812G free", "text-muted"), (1 << 30, "disk 1.0G free", "text-warning"),
    (400 << 20, "disk 400M free", "text-warning"), (0, "disk 0M free", "text-error"),
])
async def test_a_disk_that_fills_up_stands_out(free: int, said: str, colour: str):
    machine = slots(1)
    sampler = StillSampler(machine)
    host = HostSample(0.12, 61 << 30, 251 << 30, free, 1e6, 1e6)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, _):
        await until(pilot, lambda: said in screen_text(pilot.app))
        ink = next(ink for text, ink, _ in painted(pilot.app) if said in text)
        assert ink.hex == Color.parse(pilot.app.theme_variables[colour]).hex


async def test_a_launch_on_a_full_disk_is_refused_by_name(home, monkeypatch):
    async with panel(slots(1)) as (pilot, screen):
        monkeypatch.setattr("gpu_engine.runs.disk_room.LEAST", 1 << 62)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.query_one("#verdict").display)
        assert screen.query_one("#launch", Button).disabled
        assert "no space left in" in str(screen.query_one("#verdict", Static).content)
        assert any(f"no space left in {home}/runs" in p for p in problems_below(screen))
        assert runs.all_runs() == []
        monkeypatch.undo()
        screen.review_now()
        await settled(pilot, screen)
        assert not screen.query_one("#launch", Button).disabled
