"""The launch screen as text in both sizes. GOLDENS=write writes the pictures again."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpu_engine.remote.reach.watcher import HostSeen
from gpu_engine.runs.folder import Run
from gpu_panel.launch.fields import Fieldset
from gpu_panel.launch.host_bar import HostBar
from gpu_panel.launch.run_feed import RunLine, RunsFeed

from ...conftest import slots
from ..colours import as_painted
from ..machines import lab, shared_machine
from ..panel_kit import compare, looked, panel, picture, press, settled, type_into
from ..run_kit import T0, trained

SIZES = [(80, 24), (160, 48)]
PICTURES = {"shared-160": "launch", "hosts-160": "hosts", "runs-160": "runs"}
"""The pictures of docs/panel.md that are made of these screens."""


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Fixed values for all that changes: host name, clock, free disk."""
    monkeypatch.setattr("socket.gethostname", lambda: "lab-a100")
    monkeypatch.setattr("gpu_panel.launch.host_bar.time.strftime", lambda _: "14:02")
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: ((), 0))
    shown = Fieldset.show_interpreter
    monkeypatch.setattr(Fieldset, "show_interpreter", lambda self, taken: shown(
        self, taken and replace(taken, path="/home/me/project/.venv/bin/python", python="3.11.7")))


async def golden(name, pilot, screen):
    screen.query_one(HostBar).refresh()
    await pilot.pause()
    await compare(name, pilot.app)
    if name in PICTURES:
        await picture(PICTURES[name], pilot.app)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_shared_machine(size):
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=size) as (pilot, screen):
        await looked(pilot, screen)
        await golden(f"shared-{size[0]}", pilot, screen)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_several_machines(size, monkeypatch):
    ages = {"away": 75.0, "seen": 0.4}
    monkeypatch.setattr(HostSeen, "age", lambda self, now=None:
                        ages.get(self.state) if self.heard is not None else None)
    async with panel(slots(2), hosts=lab(), size=size) as (pilot, screen):
        await looked(pilot, screen)
        screen.devices.scroll_to(y=0, animate=False)
        await golden(f"hosts-{size[0]}", pilot, screen)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_form_with_problems(size):
    async with panel(slots(2), size=size) as (pilot, screen):
        await looked(pilot, screen)
        await pilot.press("2")
        await type_into(pilot, screen, "f-batch-size", "33")
        screen.query_one("#f-amp-dtype").choose("fp16")
        screen.bring_forward("form")
        screen.query_one("#f-amp-dtype").focus()
        await settled(pilot, screen)
        await golden(f"problems-{size[0]}", pilot, screen)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_runs_live_and_earlier(size, tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr("gpu_panel.launch.run_page.time", SimpleNamespace(
        time=lambda: T0 + 50))
    written = trained(tmp_path)
    curve = tuple(5.5 / (1 + i / 10) for i in range(100))
    lines = (
        RunLine(Run(tmp_path / "3f2a"), "bytes-gpt", "ddp", 2, "running", True, now, step=1240,
                total=5862, loss=1.832, history=curve, samples_per_s=12400.0, seconds_left=252.0,
                seconds=68.0, tags=("lr", "base")),
        RunLine(Run(tmp_path / "2c11"), "digits", "single", 1, "completed", False, now - 4e3,
                now - 3 * 3600, step=300, total=300, loss=0.061, history=curve, samples_per_s=980.0,
                seconds=603.0),
        RunLine(Run(tmp_path / "90aa"), "vgg", "dp", 4, "failed", False, now - 4e3, now - 86400.0,
                reason="rank 2: CUDA out of memory", step=12, total=300, loss=float("nan"),
                history=(1.0, float("nan"))),
    )
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: (lines, 11))
    async with panel(slots(2), size=size) as (pilot, screen):
        await looked(pilot, screen)
        await press(pilot, screen, "4")
        await golden(f"runs-{size[0]}", pilot, screen)
    written.release()


async def test_a_shared_machine_in_a_light_theme():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, screen):
        pilot.app.theme = "textual-light"
        await looked(pilot, screen)
        screen.query_one(HostBar).refresh()
        await pilot.pause()
        await compare("shared-light-80", pilot.app, as_painted)
