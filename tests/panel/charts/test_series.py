"""Series in bounded memory keep every extreme, whatever values come."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_engine.common.series import Series
from gpu_panel.charts.series import RankSeries

finite = st.floats(-1e6, 1e6)
any_value = finite | st.sampled_from([math.nan, math.inf, -math.inf])
points = st.lists(st.tuples(st.integers(0, 5000), any_value), max_size=200)


def kept(series: Series) -> list[tuple[int, float, float, int]]:
    return [(i, series.lo[i], series.hi[i], series.count[i]) for i in range(len(series))]


@given(points, st.sampled_from([4, 8, 64]))
def test_both_ends_of_everything_are_kept(added, capacity):
    series = Series(capacity)
    for x, value in added:
        series.add(x, value)
    good = [v for _, v in added if math.isfinite(v)]
    assert len(series) <= capacity
    assert sum(series.count) == len(good)
    assert sum(series.bad) == len(added) - len(good)
    if good:
        assert min(series.lo) == min(good)
        assert max(series.hi) == max(good)
        assert math.isclose(sum(series.total), math.fsum(good), abs_tol=1e-3)
    if added:
        assert series.last == max(x for x, _ in added)
        assert series.start <= min(x for x, _ in added)
        for x, value in added:
            low, mean, high = series.at(x)
            if math.isfinite(value):
                assert low <= value <= high
                assert low - 1e-6 <= mean <= high + 1e-6


@given(points, st.integers(0, 5000), st.sampled_from([4, 64]))
def test_a_cut_leaves_nothing_after_it(added, at, capacity):
    series = Series(capacity)
    for x, value in added:
        series.add(x, value)
    series.cut(at)
    assert series.last is None or series.last < at or not added
    series.add(at, 1.0)
    assert series.last == at
    assert series.at(at)[2] >= 1.0


def test_values_that_are_not_finite_never_touch_the_bounds():
    series = Series()
    for x, value in enumerate([1.0, math.nan, math.inf, -math.inf, 2.0]):
        series.add(x, value)
    assert (min(series.lo), max(series.hi)) == (1.0, 2.0)
    assert series.bad_at == 1
    assert math.isnan(series.at(1)[1])
    assert series.at(99) is None


def test_a_jump_beyond_all_bounds():
    series = Series()
    series.add(3, 1.0)
    series.add(1 << 59, 2.0)
    assert len(series) <= 2048
    assert sum(series.count) == 2


def test_an_attempt_that_resumes_replaces_the_tail():
    ranks = RankSeries()
    for rank in (0, 1):
        ranks.begin(rank, 1)
        ranks.extend(rank, range(10), [float(x) for x in range(10)])
    for rank in (0, 1):
        ranks.begin(rank, 2)
        ranks.extend(rank, [5, 6, 7], [50.0, 60.0, 70.0])
    assert ranks.ranks[0].last == 7
    assert ranks.ranks[0].at(4)[1] == 4.0
    assert ranks.all.at(5) == (50.0, 50.0, 50.0)
    assert ranks.all.at(8) is None


@given(st.permutations([(0, 1), (0, 2), (1, 1), (1, 2)]))
def test_files_may_be_read_in_any_order(order):
    assume(all(order.index((r, 1)) < order.index((r, 2)) for r in (0, 1)))
    firsts = {rank: 9 if rank == 0 else 12 for rank in (0, 1)}
    ranks = RankSeries()
    for rank, attempt in order:
        ranks.begin(rank, attempt)
        if attempt == 1:
            ranks.extend(rank, range(firsts[rank] + 1), [1.0] * (firsts[rank] + 1))
        else:
            ranks.extend(rank, range(6, 12), [2.0] * 6)
    for step in range(6, 12):
        assert ranks.all.at(step) == (2.0, 2.0, 2.0), step
    assert ranks.all.at(5) == (1.0, 1.0, 1.0)
    assert ranks.all.at(12) is None

