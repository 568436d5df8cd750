"""The small curves of a device's last minutes."""

from __future__ import annotations

import math

import pytest

from gpu_engine.devices.records import Sample, Snapshot
from gpu_panel.launch.devices.history import KEPT, History, curve

from ...machines import GPU


def test_a_curve_s_scale_is_always_the_whole():
    assert curve([0.0, 0.5, 1.0], KEPT).strip() == "▁▅█"
    assert set(curve([0.01] * KEPT, 10)) == {"▁"}
    assert curve([7.0, -3.0], KEPT).strip() == "█▁"


def test_a_curve_has_gaps_where_nothing_is_known():
    assert curve([None, math.nan, math.inf, 0.5], KEPT).endswith("   ▅")
    assert curve([], 8) == " " * 8
    assert curve([0.5], 0) == ""


@pytest.mark.parametrize("width", [1, 7, 10, 12, 60, 119, 120, 200])
@pytest.mark.parametrize("count", [0, 1, 5, 119, 120])
def test_a_curve_is_as_wide_as_told(width, count):
    assert len(curve([0.3] * count, width, seen=count + 7)) == width


def test_between_two_looks_only_the_last_cell_moves():
    values = [i / 120 for i in range(120)]
    history = History()
    shots = [Snapshot(float(i), (Sample(GPU, v, int(v * GPU.memory_total)),))
             for i, v in enumerate(values)]
    before = ""
    for i, shot in enumerate(shots):
        history.learn(shots[:i + 1])
        assert history.seen == i + 1
        now = history.utilization("0", 10)
        if before and i % 12:
            assert now[:-1] == before[:-1]
        before = now
        assert shot is shots[i]
    assert history.memory("0", 10) == history.utilization("0", 10)
    history.learn(shots)
    assert history.seen == 120
