"""No widget that takes keys is off the screen, at any usual size of a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from textual.color import Color
from textual.widget import Widget
from textual.widgets import Input

from gpu_engine.devices.records import HostSample, Sample
from gpu_engine.runs.folder import Run
from gpu_panel.common.choice import Choice
from gpu_panel.launch.host_bar import HostBar
from gpu_panel.launch.run_feed import RunsFeed
from gpu_panel.launch.run_line import RunLine

from ...conftest import gpus, slots
from ..colours import painted
from ..machines import shared_machine
from ..panel_kit import StillSampler, looked, panel, press, says, screen_text, shown, until

SIZES = [(80, 24), (110, 30), (129, 40), (230, 60)]


async def test_every_field_is_within_the_form_and_the_details_on_the_screen():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler) as (pilot, screen):
        await looked(pilot, screen)
        await pilot.press("2")
        screen.query_one("#f-parallel-mode", Choice).choose("multinode")
        screen.query_one("#f-train-lr_scale", Choice).choose("linear")
        await press(pilot, screen, "2")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: tuple(screen.size) == size)
            await pilot.pause()
            room = screen.query_one("#fields").scrollable_content_region
            fields = [w for w in screen.query("#fields *") if w.focusable
                      and isinstance(w, Input | Choice)
                      and all(n.display for n in w.ancestors_with_self if isinstance(n, Widget))]
            assert len(fields) > 30
            taken: set[tuple[int, int]] = set()
            for field in fields:
                at = field.region
                where = f"{field.id} at {size}: {at} in {room}"
                assert room.x <= at.x, where
                assert at.right <= room.right, where
                assert at.width >= 5, where
                if isinstance(field, Choice) and not field.closed:
                    said = "".join(s.text for s in field.render_lines(field.size.region))
                    assert all(label in said for _, label in field.options), where
                cells = {(x, y) for x in range(at.x, at.right) for y in range(at.y, at.bottom)}
                assert not cells & taken, where
                taken |= cells
        await pilot.press("1", "i")  # the details of a device
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await until(pilot, lambda w=width: screen.size.width == w)
            await pilot.pause()
            detail = screen.query_one("#detail")
            assert detail.region in screen.region, (width, height)
            assert detail.region.height >= 9, (width, height)
            said = screen_text(pilot.app).splitlines()
            assert any("GPU 0 ─" in line for line in said), (width, height)
            assert any("i close" in line for line in said), (width, height)
            if width >= 110:
                assert screen.query_one("#devices").region.height >= 7, (width, height)
                assert screen.query_one("#launch").region in screen.region, (width, height)


async def test_the_field_that_takes_keys_stays_in_view_when_the_terminal_gets_smaller():
    async with panel(gpus(4), size=(112, 36)) as (pilot, screen):
        await press(pilot, screen, "2")
        fields = screen.query_one("#fields")
        field = screen.query_one("#f-run-grace")
        field.focus()
        for size in ((60, 12), (112, 36), (80, 24)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: tuple(screen.size) == size)
            await until(pilot, lambda: field.region in fields.scrollable_content_region)
        assert screen.focused is field


async def test_devices_have_the_rows_they_need_and_the_runs_or_the_form_the_rest():
    machine = gpus(8)
    samples = tuple(Sample(d, 0.5, 40 << 30, 80 << 30, 60.0, 300.0, 400.0, processes=())
                    for d in machine.devices)
    async with panel(machine, "ddp", sampler=StillSampler(machine, samples),
                     size=(120, 36)) as (pilot, screen):
        await looked(pilot, screen)
        await until(pilot, lambda: screen.devices.max_scroll_y == 0)
        said = screen_text(pilot.app).splitlines()
        assert sum(" 60  300 " in line and "⢠" in line for line in said) == 8
        assert screen.devices.region.height == screen.devices.rows_wanted
        assert screen.runs.region.height >= 14
        await pilot.press("2")
        await until(pilot, lambda: screen.form.region.height >= 14)
        await pilot.press("1", "i")
        await until(pilot, lambda: screen.detail.region.height >= 14)


async def test_the_first_tab_has_the_runs_below_the_devices_and_nothing_is_pushed_off(monkeypatch):
    line = RunLine(Run(Path("3f2a")), "toy", "single", 1, "completed", False, 1.0, ended=2.0)
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: ((line,), 0))
    async with panel(gpus(12), size=(80, 24)) as (pilot, screen):
        await looked(pilot, screen)
        said = screen_text(pilot.app)
        assert all(text in said for text in ("☐ 7", "$ gpu-engine run", "3f2a  toy", "? keys"))
        await pilot.press("tab", "tab", "tab")
        assert screen.focused is screen.runs
        await pilot.press("escape")
        assert screen.focused is screen.devices
        for height in (18, 21, 27, 34):
            await pilot.resize_terminal(80, height)
            await until(pilot, lambda h=height: screen.size.height == h)
            await pilot.pause()
            assert screen.max_scroll_y == 0, height
            assert screen.runs.is_on_screen == (height > 20), height


# --- The line about the machine: disk, memory and network ---


async def test_a_disk_that_fills_up_stands_out():
    machine = slots(1)
    sampler = StillSampler(machine)
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, _):
        for free, said, colour in ((1 << 30, "disk 1.0G free", "text-warning"),
                                   (0, "disk 0M free", "text-error")):
            host = HostSample(0.12, 61 << 30, 251 << 30, free)
            sampler.latest = replace(sampler.latest, host=host)
            await says(pilot, said)
            ink = next(ink for text, ink, _ in painted(pilot.app) if said in text)
            assert ink.hex == Color.parse(pilot.app.theme_variables[colour]).hex


async def test_the_power_of_all_devices_where_there_is_room():
    """A lost device's last figure is none of it."""
    machine = gpus(8)
    samples = tuple(Sample(d, power=300.0, processes=()) for d in machine.devices[:7])
    lost = Sample(machine.devices[7], power=300.0, problem="GPU is lost")
    sampler = StillSampler(machine, (*samples, lost))
    host = HostSample(0.1, 1 << 30, 2 << 30, 3 << 30)
    sampler.latest = replace(sampler.latest, host=host)
    async with panel(machine, sampler=sampler, size=(160, 30)) as (_, screen):
        bar = screen.query_one(HostBar)
        assert "8 GPUs · 2.1 kW · " in shown(bar)
        assert "RAM 1/2G" in shown(bar)
