"""Devices as lines of text."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.devices import leases
from gpu_engine.devices.availability import judge_all
from gpu_engine.devices.records import (
    Device,
    DeviceProcess,
    Inventory,
    Sample,
    Snapshot,
)
from gpu_engine.runs.folder import Run
from gpu_panel.charts.braille import area, level
from gpu_panel.launch.device_source import BRIDGED, SPAN, DeviceSource, History, Machine
from gpu_panel.launch.device_table import DeviceTable, Ours, build, hue_of, of_runs
from gpu_panel.launch.run_line import RunLine

from ....conftest import gpus, slots
from ...machines import GPU
from ...panel_kit import StillSampler


def text(look: DeviceTable, width=80) -> str:
    found = build(look, width)
    lines = [found.header] if found.header else []
    lines += [line for row in found.rows for line in row.lines]
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines)


def look(inventory, *samples, history=None, **more) -> DeviceTable:
    shot = Snapshot(time.time(), samples)
    return DeviceTable((Machine(None, inventory, shot, judge_all((shot,) * 3, {}), history),),
                       **more)


def test_what_is_not_known_is_never_a_zero():
    machine = gpus(1)
    said = text(look(machine, Sample(machine.devices[0])))
    assert " –" in said
    assert " 0 %" not in said
    assert "°C" not in said


@pytest.mark.parametrize("inventory", [Inventory((), "nvml"),
                                       Inventory((), "cpu", problem="no driver is loaded")])
def test_no_devices_say_what_to_do(inventory):
    assert "driver" in text(DeviceTable((Machine(None, inventory),)))


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("width", range(24, 160, 3))
def test_a_device_has_one_line_and_none_is_wider_than_the_table(width, count):
    machine = gpus(count)
    samples = [Sample(d, 1.0, 80 << 30, 80 << 30, 90.0, 400.0, 400.0, processes=())
               for d in machine.devices]
    lines = text(look(machine, *samples), width).splitlines()
    assert len(lines) == count + 1
    if width >= 44:
        assert max(map(len, lines)) <= width


def test_what_others_call_their_processes_is_harmless():
    machine = gpus(1)
    evil = "[bold]x\x1b]52;c;AAAA\x07\x9b31m\u202etxt"
    said = text(look(machine, Sample(machine.devices[0], 0.5, 1 << 30, 80 << 30, processes=(
        DeviceProcess(7, 1 << 30, user=evil, command=evil, started=time.time()),))))
    assert all(c.isprintable() or c == "\n" for c in said)
    assert "[bold]x" in said
    assert "52;c" not in said


def lab(count: int, seconds=300) -> DeviceTable:
    """So many devices after five minutes, the first of which a run of ours has kept busy."""
    machine, history = gpus(count), History()
    samples = [Sample(d, 0.0 if i else 0.9, 0 if i else 72 << 30, 80 << 30, 60.0, 300.0, 400.0,
                      processes=()) for i, d in enumerate(machine.devices)]
    history.learn([Snapshot(float(i), tuple(samples)) for i in range(seconds)])
    return look(machine, *samples, history=history, ours={"0": Ours("3f2a", 0, "gpt", "1:08")})


def test_a_run_of_ours_stands_out():
    table = lab(4)
    table = replace(table, ours={"0": replace(table.ours["0"], hue="hue 5")})
    rows = build(table, 160).rows
    for mark in "⣶", "gpt", "▇":
        assert "hue 5" in {style for part, style in rows[0].lines[0] if mark in part}
    assert {style for part, style in rows[1].lines[0] if "⣀" in part} == {"track"}


def test_a_run_s_hue_is_the_place_of_its_first_device():
    run = RunLine(Run(Path("3f2a")), "gpt", "ddp", 2, "running", True, 100.0,
                  devices=(("9", 0), ("gpu1 1", 1)))
    keys = [*map(str, range(9)), "gpu1 0", "gpu1 1", "9"]
    assert hue_of(keys, run) == "hue 2"
    assert hue_of(keys[:9], run) == "accent"
    assert {ours.hue for ours in of_runs([run], 0.0, keys).values()} == {"hue 2"}


@pytest.mark.parametrize("width", range(44, 260, 9))
def test_a_line_has_no_hole_and_ends_with_the_history(width):
    found = build(lab(2), width)
    head = "".join(part for part, _ in found.header)
    line = "".join(part for part, _ in found.rows[0].lines[0])
    assert len(line) <= width
    if "last 5 min" in head:
        assert len(line) == width
        assert " " not in line[head.index("last"):]
        assert "rank 0 · gpt  " in line
    assert ("last 5 min" in head) == (width > 98)


@pytest.mark.parametrize("width", [116, 156, 226])
def test_nothing_moves_when_others_use_a_device(width):
    machine = gpus(1)
    heads = set()
    for command, used in (("a", 0), ("train.py --with many --words", 9), ("b" * 200, 71)):
        process = DeviceProcess(9, 1 << 30, user="alice", command=command, started=time.time())
        sample = Sample(machine.devices[0], 0.99, used << 30, 80 << 30, 60.0, 300.0, 400.0,
                        processes=(process,))
        heads.add(text(look(machine, sample, history=History()), width).splitlines()[0])
    [head] = heads
    assert head.index("┊1") == width - (width - head.index("last")) // 5


def test_a_driver_that_fails_takes_no_column_away():
    device = gpus(1).devices[0]
    fine = Sample(device, 0.5, 1 << 30, 80 << 30, 60.0, 300.0, 400.0, processes=())
    heads = [text(look(gpus(1), s), 90).splitlines()[0].split()
             for s in (fine, Sample(device, problem="the driver is not loaded"))]
    assert heads[0] == heads[1]
    assert "°C" in heads[0]


def test_of_a_slice_its_size_is_read_first():
    card = gpus(1).devices[0]
    part = Device("MIG-a", "mig", f"{card.name} MIG 1g.10gb 1:2", 1, "MIG-a", 10 << 30)
    machine = Inventory((card, part), "nvml")
    shot = Snapshot(1.0, (Sample(card), Sample(part)))
    said = text(DeviceTable((Machine(None, machine, shot),)), 120)
    assert "1:2  1g.10gb of" in said


def test_an_inherited_allocation_is_shown_with_its_numbers():
    machine = gpus(4)
    kept = tuple(replace(machine.devices[i], visible_index=n) for n, i in enumerate((3, 1)))
    found = replace(machine, devices=kept, inherited_visible="3,1",
                    visible_variable="CUDA_VISIBLE_DEVICES")
    shot = Snapshot(1.0, tuple(map(Sample, kept)))
    rows = build(DeviceTable((Machine(None, found, shot),)), 80).rows
    said = "\n".join("".join(part for part, _ in line) for row in rows for line in row.lines)
    assert "☐ 3→0" in said
    assert "☐ 1→1" in said
    assert '"3,1"' in said


def styles(look: DeviceTable, width=110) -> dict[str, str]:
    """Text of each part → its style."""
    return {part.strip(): style for row in build(look, width).rows for line in row.lines
            for part, style in line if part.strip("░ ")}


@pytest.mark.parametrize(("used", "heat", "watts", "wanted"), [
    (8, 40.0, 100.0, ("", "", "")),
    (72, 75.0, 395.0, ("warn", "warn", "")),
    (79, 85.0, 398.0, ("bad", "bad", "warn"))])
def test_figures_are_coloured_where_they_tell_of_trouble(used, heat, watts, wanted):
    machine = gpus(1)
    found = styles(look(machine, Sample(machine.devices[0], 0.99, used << 30, 80 << 30, heat, watts,
                                        400.0, processes=())))
    memory = next(style for part, style in found.items() if part.endswith("/80G"))
    mark = "!" * (wanted[1] == "bad")
    assert (memory, found[f"{heat:.0f}{mark}"], found[f"{watts:.0f}"]) == wanted
    bars = [style for part, style in build(look(machine, Sample(
        machine.devices[0], 0.99, used << 30, 80 << 30, heat, watts, 400.0, processes=())),
        110).rows[0].lines[0] if "▇" in part]
    assert bars == [wanted[1] or bars[0], wanted[0] or bars[0]]  # of the heat, of the memory


def test_a_run_is_on_its_device_since_it_began_and_not_since_it_waits():
    run = RunLine(Run(Path("3f2a")), "gpt", "ddp", 1, "running", True, 100.0, started=940.0,
                  devices=(("0", 3),))
    assert str(of_runs([run], 1000.0)["0"]) == "● 3f2a rank 3 · gpt · 01:00"
    assert of_runs([replace(run, started=None)], 1000.0)["0"].since == "15:00"


# --- Five minutes of a device's utilisation and memory, and the graphs of them ---


def shot(at: float, share: float | None) -> Snapshot:
    used = None if share is None or math.isnan(share) else int(share * GPU.memory_total)
    return Snapshot(at, (Sample(GPU, share, used),))


def filled(values, first=1000) -> History:
    history = History()
    history.learn([shot(first + i, v) for i, v in enumerate(values)])
    return history


@pytest.mark.parametrize("width", [1, 7, 10, 38, 60, 97, 150, 400])
def test_five_minutes_fit_into_any_width(width):
    drawn = filled([0.5] * 2 * SPAN).utilization("0", width)
    assert drawn == [0.5] * min(width, SPAN)


def test_each_value_is_the_mean_of_its_time():
    over = 30  # ten seconds a cell
    history = filled([i // 10 / 30 for i in range(300)])  # from a multiple of ten on
    assert history.utilization("0", over) == pytest.approx([i / 30 for i in range(30)])
    assert history.memory("0", over) == pytest.approx([i / 30 for i in range(30)], abs=1e-6)
    assert history.utilization("1", over) == [None] * 30


def test_what_is_read_rarely_is_a_line_and_a_pause_is_a_gap():
    over = 300
    rare = History()
    rare.learn([shot(1000 + i * BRIDGED, 0.5) for i in range(20)])
    assert rare.utilization("0", over)[-19 * BRIDGED - 1:] == [0.5] * (19 * BRIDGED + 1)
    paused = History()
    paused.learn([shot(1000, 0.5), shot(1000 + BRIDGED + 1, 0.5)])
    assert paused.utilization("0", over)[-BRIDGED - 2:] == [0.5, *[None] * BRIDGED, 0.5]


def test_unknown_values_are_gaps():
    over = 300
    history = filled([0.5, None, math.nan, 7.0, -1.0])
    assert history.utilization("0", over)[-5:] == [0.5, None, None, 1.0, 0.0]


def test_of_two_readings_within_a_second_the_last_one_counts():
    history = History()
    history.learn([shot(1000.1, 0.2), shot(1000.9, 0.8)])
    assert history.utilization("0", 300)[-1] == pytest.approx(0.8)


def test_a_card_whose_memory_is_held_for_nothing_says_so():
    alice = DeviceProcess(7, 40 << 30, user="alice", command="python train.py", started=100.0)

    def seen(*busy: float) -> DeviceTable:
        """After an hour in which it computed in these seconds."""
        machine, history = gpus(1), History()
        sample = Sample(machine.devices[0], 0.0, 41 << 30, 80 << 30, processes=(alice,))
        history.learn([Snapshot(float(i), (replace(sample, utilization=0.5 * (i in busy)),))
                       for i in range(0, 3601, 10)])
        return look(machine, sample, history=history)

    assert "idle 60 min: alice" in text(seen(0))
    assert "idle 30 min: alice" in text(seen(1790))
    assert "idle" not in text(seen(1800))


# --- what is offered and judged ----------------------------------------------------------------


@pytest.fixture
def source(monkeypatch):
    """That of a machine with two GPUs."""
    async def sample(self, inventory):
        pass

    monkeypatch.setattr(DeviceSource, "_sample", sample)
    monkeypatch.setattr("gpu_engine.devices.discover.discover", lambda: gpus(2))
    monkeypatch.setattr("gpu_engine.devices.discover.cpu_slots", lambda: slots(2))
    return DeviceSource(gpus(2), StillSampler(gpus(2)))


async def test_cpu_slots_are_offered_in_place_of_gpus_and_those_again(source):
    await source.judge()
    assert source.freedom
    history = source.history
    await source.offer("cpu")
    assert (source.gpus_aside, source.inventory.is_cpu, source.freedom) == (2, True, None)
    assert source.history is not history
    await source.offer("gpu")
    assert (source.gpus_aside, source.inventory.is_cpu) == (0, False)


async def test_a_judgement_of_devices_that_are_no_longer_offered_is_dropped(source, monkeypatch):
    def meanwhile(folder):
        source.inventory = slots(2)
        return {}

    monkeypatch.setattr(leases, "holders", meanwhile)
    await source.judge()
    assert source.freedom is None


def test_a_clock_that_is_set_back_begins_anew():
    history = filled([0.9] * 100, first=90_000)
    history.learn([shot(1000, 0.1)])
    assert [v for v in history.utilization("0", 300) if v is not None] == [0.1]
    history.learn([shot(990, 0.8)])  # a little back: older than what is there
    assert [v for v in history.utilization("0", 300) if v is not None] == [0.1]


# --- graphs ----------------------------------------------------------------------------------


def test_an_area_s_scale_is_the_whole_and_never_fills_a_cell():
    assert area([0.0, 0.1, 0.5, 1.0, None, None]) == ["⣀⣴ "]
    assert area([0.99]) == ["⢰"]
    assert area([None, 1.0]) == area([1.0])
    assert area([0.0, 0.5, 0.75, 1.0], 2) == [" ⣴", "⣸⣿"]


def test_a_bar_stands_on_its_track_also_without_colours():
    assert [level(share, 4) for share in (0.0, 0.2, 0.5, 1.0)] == [
        ("", "▁▁▁▁"), ("▇", "▁▁▁"), ("▇▇", "▁▁"), ("▇▇▇▇", "")]
