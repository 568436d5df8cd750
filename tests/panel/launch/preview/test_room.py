"""How the parts of a run's preview share its rows, and where the preview itself has room."""

from __future__ import annotations

import pytest

from gpu_panel.launch import room
from gpu_panel.launch.room import Parts, Wanted, share


def parts(height, ranks=2, banner=0, **more) -> Parts:
    return share(height, **({"ranks": ranks, "banner": banner, "facts": True, "curves": True,
                             "failed": False, "waits": False, "lines": 99} | more))


def test_no_row_is_given_twice_or_to_nobody():
    for height in range(4, 60):
        for ranks in (0, 1, 8, 64):
            for banner in (0, 1, 9):
                for state in ({}, {"failed": True}, {"curves": False}, {"waits": True},
                              {"failed": True, "curves": False}):
                    found = parts(height, ranks, banner, **state)
                    rows = (found.facts, found.banner, found.curves, found.ranks, found.log,
                            found.plan)
                    assert sum(rows) == height, (height, ranks, banner, state, found)
                    assert min(rows) >= 0


def test_the_curves_come_first_and_why_it_failed_before_them():
    assert parts(7) == Parts(facts=0, banner=0, curves=7, ranks=0, log=0)
    low = parts(9, banner=1, failed=True)
    assert (low.curves, low.log) == (0, 8)
    high = parts(30, banner=1, failed=True)
    assert high.curves >= 7
    assert high.log >= high.curves
    assert parts(30, lines=1).log == 2  # a log takes no more than it needs
    assert parts(20, curves=False, ranks=1) == Parts(facts=1, banner=0, curves=0, ranks=3, log=16)
    assert parts(20, banner=3, facts=False, waits=True) == Parts(0, 3, 0, 0, 0, 17)


@pytest.mark.parametrize(("height", "runs", "rows"), [
    (24, 6, 14),  # few runs leave it more
    (24, 60, 9),  # many leave it the least
    (20, 6, 0),  # too little room for both
    (60, 10, 38)])
def test_rows_below_the_list(height, runs, rows):
    assert room.below(height, runs) == rows


def test_who_looks_at_runs_has_more_rows_for_them():
    wanted = Wanted(devices=19, form=18, plan=5, runs=4)
    for height in (36, 48, 60):
        assert room.top(height, wanted, reading=True) <= room.top(height, wanted)
    assert room.top(36, wanted, reading=True) == room.LEAST
    assert room.top(70, wanted, reading=True) == room.top(70, wanted)
