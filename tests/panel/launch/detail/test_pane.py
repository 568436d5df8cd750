"""The detail pane: it follows the cursor, fits any screen, and measures only what it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_engine.devices.availability import Availability
from gpu_engine.devices.leases import Holder
from gpu_engine.devices.records import Device, DeviceProcess, Sample
from gpu_panel.launch.detail import DetailPane, DeviceDetails, build
from gpu_panel.launch.device_source import History
from gpu_panel.launch.devices import DevicesPane

from ....conftest import slots
from ...machines import BUSY, GPU, busy_machine
from ...panel_kit import (
    NOW,
    compare,
    panel,
    press,
    screen_text,
    shown,
    until,
)


@pytest.fixture
def steady(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "lab-a100")
    monkeypatch.setattr("gpu_panel.launch.host_bar.time.strftime", lambda _: "14:02")
    monkeypatch.setattr("gpu_panel.launch.run_feed.RunsFeed.refresh", lambda self: ([], 0))
    monkeypatch.setattr("gpu_panel.launch.detail.time.time", lambda: NOW)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=str)
async def test_golden(size, steady):
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=size) as (pilot, screen):
        await until(pilot, lambda: screen.source.freedom and screen.runs.lines is not None)
        await press(pilot, screen, "i")
        await compare(f"detail-{size[0]}", pilot.app)


async def test_narrow_it_is_a_view_of_its_own():
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=(80, 24)) as (pilot, screen):
        await pilot.press("i")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert screen.focused is detail
        assert not screen.query_one(DevicesPane).display
        await pilot.press("right")
        await pilot.pause()
        assert detail.border_title.startswith("GPU 1 ─ ")
        await pilot.press("left")
        await pilot.press("escape")
        await pilot.pause()
        assert not detail.display
        assert screen.focused.id == "devices"
        await pilot.press("i", "2")
        await pilot.pause()
        assert not detail.display
        assert screen.query_one("#form").display


async def test_with_little_room_the_words_can_be_scrolled():
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=(80, 16)) as (pilot, screen):
        await pilot.press("enter")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert "GPU-00000000" in shown(detail)
        await pilot.press("down", "down", "down", "down")
        await pilot.pause()
        assert "graphics" in screen_text(pilot.app)
        assert detail.at_cursor.pid == 9
        await pilot.press(*["up"] * 30)
        await pilot.pause()
        assert "GPU-00000000" in shown(detail)


# --- Everything known about a device as lines of text; a dash for unknown ---


def text(details: DeviceDetails, width=156) -> str:
    return "\n".join("".join(part for part, _ in line).rstrip()
                     for row in build(details, width) for line in row.lines)


def test_what_a_wide_pane_says_more_and_who_holds_it():
    said = text(DeviceDetails(GPU, BUSY, Availability("busy", "alice"),
                              Holder("x", run="3f2a", user="bob"), True,
                              processes=BUSY.processes or (), ours={7: "3f2a rank 1"},
                              now=NOW))
    for words in ("compute capability 8.0", "run 3f2a of bob", "3f2a rank 1", "70 %", "107 %"):
        assert words in said, words


def test_what_is_not_known_is_a_dash_and_never_a_zero():
    said = text(DeviceDetails(GPU, Sample(GPU)))
    assert "0 %" not in said
    assert " 0 " not in said.replace("index 0 ", "")
    assert "°C" not in said
    for label in ("temperature  –", "power        –", "fan          –", "performance  –",
                  "– of – MHz", "memory busy –", "slowed by    –", "gen – ×–",
                  "– corrected, – not", "persistence  –", "compute mode –", "lease        –",
                  "The driver does not list its processes", "? –"):
        assert label in said, label
    assert "no hardware fault" not in said  # there was no sample


def test_nobody_on_it_and_nobody_holds_it():
    said = text(DeviceDetails(GPU, replace(BUSY, processes=()), leases_known=True))
    assert "No processes" in said
    assert "nobody" in said


def test_faults_of_the_hardware_stand_out_once():
    bad = replace(BUSY, problem="GPU is lost", health=("2 uncorrected memory errors",))
    said = text(DeviceDetails(GPU, bad, Availability("unhealthy", "GPU is lost")))
    assert said.count("GPU is lost") == 1
    assert "✗ 2 uncorrected memory errors" in said


def test_a_cpu_slot_has_no_gpu_s_facts():
    slot = slots(1, cores=2).devices[0]
    said = text(DeviceDetails(slot, Sample(slot, 0.5, 1 << 30, 16 << 30)))
    assert "cores 0, 1" in said
    assert "PCIe" not in said


def test_a_slice_says_whose():
    part = Device("MIG-1", "mig", "NVIDIA A100 MIG 1g.10gb 0:1", 0, "MIG-1", 10 << 30,
                  visible_index=1)
    said = text(DeviceDetails(part, Sample(part, taken=NOW)))
    assert "a slice of GPU 0" in said
    assert "position 1 of those made visible" in said


@pytest.mark.parametrize("width", [44, 60, 76, 104, 120, 156, 240])
def test_no_line_is_wider_than_the_pane(width):
    said = text(DeviceDetails(GPU, replace(BUSY, throttle=("x" * 300,)),
                              Availability("busy", "y" * 300), now=NOW, history=History()), width)
    assert max(map(len, said.splitlines())) <= max(width, 76)


def test_names_of_others_are_harmless():
    evil = "[bold]x\x1b]52;c;AAAA\x07\x9b31m\u202etxt\nnext"
    s = replace(BUSY, processes=(DeviceProcess(7, user=evil, command=evil),),
                notes=(evil,), throttle=(evil,), compute_mode=evil, health=(evil,))
    said = text(DeviceDetails(replace(GPU, name=evil), s, Availability("busy", evil),
                     Holder("x", run=evil), processes=s.processes or (), ours={7: evil}))
    assert all(c.isprintable() or c == "\n" for c in said)
    assert "[bold]x" in said
    assert "52;c" not in said


def test_slowed_by_nothing_is_not_the_same_as_not_known():
    assert "slowed by    nothing" in text(DeviceDetails(GPU, replace(BUSY, throttle=())))
    assert "slowed by    –" in text(DeviceDetails(GPU, replace(BUSY, throttle=None)))
