"""Five minutes of a device's utilisation and memory, and the graphs of them."""

from __future__ import annotations

import math

import pytest

from gpu_engine.devices import leases
from gpu_engine.devices.records import Sample, Snapshot
from gpu_panel.launch.device_source import BRIDGED, SPAN, DeviceSource, History, spread
from gpu_panel.launch.device_table import axis, bars

from ....conftest import gpus, slots
from ...machines import GPU
from ...panel_kit import StillSampler


def shot(at: float, share: float | None) -> Snapshot:
    used = None if share is None or math.isnan(share) else int(share * GPU.memory_total)
    return Snapshot(at, (Sample(GPU, share, used),))


def filled(values, first=1000) -> History:
    history = History()
    history.learn([shot(first + i, v) for i, v in enumerate(values)])
    return history


@pytest.mark.parametrize("width", [1, 7, 10, 38, 60, 97, 150, 400])
def test_five_minutes_fit_into_any_width(width):
    cells, seconds = spread(width)
    assert cells <= width
    assert cells * seconds >= SPAN > (cells - 1) * seconds
    assert len(filled([0.5] * 9).utilization("0", width)) == cells
    assert len(axis(cells)) == cells
    assert axis(cells).endswith("now"[:cells])


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


def test_a_bar_s_scale_is_always_the_whole():
    assert bars([0.0, 0.5, 1.0, None], "")[0] == "▁▅█ "
    assert set(bars([0.01] * 9, "")[0]) == {"▁"}
