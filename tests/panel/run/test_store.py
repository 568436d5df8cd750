"""The store: bounded batches, whatever the files hold; and the texts made from it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.events.reader import decoded
from gpu_engine.events.writer import encode
from gpu_engine.runs.folder import Run, State
from gpu_panel.run.banner import banner
from gpu_panel.run.doing import standing_still
from gpu_panel.run.store import RunStore

from ... import event_lines
from ...events import kinds
from ..run_kit import T0, Written, trained


async def test_a_long_run_is_read_in_pieces(tmp_path):
    run = Written(tmp_path)
    line = event_lines.line("step", {"step": 1, "n": 1, "epoch": 0, "loss": 2.0,
                                     "losses": [2.0]}, t=T0)
    phase = event_lines.line("phase", {"phase": "forward", "since": T0}, t=T0)
    for rank in (0, 1):
        run.raw(rank, phase + b"".join(line.replace(b'"step":1', b'"step":%d' % s)
                               for s in range(40_000)))
    store = RunStore(run.run)
    task = asyncio.create_task(store.follow())
    shares = []
    while not store.caught_up:
        await asyncio.sleep(0.001)
        if store.state is not None and store.ranks:
            shares += banner(store, T0)[0]
            if store.behind:  # what is read is old, and no sign that a rank is silent
                assert standing_still(store, T0 + 600) == []
    task.cancel()
    assert len(set(shares)) > 3  # the share that was read rises, so other tasks run in between
    assert any("reading events… " in s and s.endswith(" %") for s in shares)
    assert store.ranks[1].step == 39_999
    assert standing_still(store, T0 + 600)
    assert sum(store.loss.ranks[0].count) == 40_000


def test_why_a_run_is_slow_is_looked_at_again_after_a_while():
    store = RunStore(Run(Path("/nowhere/3f2a")))
    assert store.verdicts(T0) == []
    for n in range(1, 9):
        store.fold([(0, [event_lines.from_dict({
            "t": T0 + n, "kind": "step_time", "step": 100 * n, "n": 100, "seconds": 1.0,
            "data": 0.9})])])
    assert store.verdicts(T0 + 1) == []
    assert [one.code for one in store.verdicts(T0 + 9)] == ["input-bound"]


@given(st.lists(kinds.any_event, max_size=12))
def test_no_event_breaks_the_screen(told):
    from gpu_panel.run import subjects
    from gpu_panel.run.doing import Peers, doing
    from gpu_panel.run.headline import figures, headline
    from gpu_panel.run.pane import Moment
    from gpu_panel.run.ranks import RanksPane

    store = RunStore(Run(Path("/nowhere/3f2a")))
    store.state = Run(Path("/nowhere/3f2a")).state()
    store.caught_up = True
    store.fold([(0, told), (1, told)])
    headline(store, T0 + 5, 80)
    figures(store, T0 + 5)
    banner(store, T0 + 5)
    for subject in subjects.every(store):
        subject.title(store)
        subject.lines(store)
    table = RanksPane()
    table.paint(store, Moment(T0 + 5, True, None))
    table.build(80)
    for view in store.ranks.values():
        doing(view, Peers.of(store.ranks), T0 + 5, live=True)
    for series in store.loss.ranks.values():
        assert all(math.isfinite(v) for v, n in zip(series.lo, series.count, strict=True) if n)


async def test_what_is_being_read_as_an_owner_leaves_is_not_lost(tmp_path):
    """The preview of a run hands its store to the run's screen, at any moment."""
    run = trained(tmp_path)
    store = RunStore(run.run)
    turns = 0
    while not store.caught_up:
        owner = asyncio.create_task(store.follow())
        for _ in range(turns):  # leave a little later each time
            await asyncio.sleep(0)
        turns += 1
        owner.cancel()
        await asyncio.gather(owner, store.reading or asyncio.sleep(0), return_exceptions=True)
    assert store.ranks[0].step == 99
    assert sum(store.loss.ranks[0].count) == sum(store.loss.ranks[1].count) == 100


# --- Frequent events are folded many at a time: the result is that of one by one ---


odd = st.sampled_from([math.nan, math.inf, -math.inf])
number = st.floats(-1e6, 1e6) | st.sampled_from([1e308, -0.0])
value = number | number | number | odd
small = st.integers(0, 400)
maybe = st.none() | value
steps = st.builds(
    lambda step, n, losses, more: schema.Step(step, n=n, **more, losses=tuple(losses)),
    small, st.integers(0, 4), st.lists(value, max_size=4), st.fixed_dictionaries(
        {"lr": maybe, "skipped": st.none() | small}, optional=dict.fromkeys(
            ("loss", "loss_min", "loss_max", "loss_last", "samples_per_s", "data_wait",
             "grad_norm"), maybe)))
regular = st.tuples(small, st.integers(1, 40), st.integers(1, 30), st.booleans(), value).map(
    lambda told: [
        schema.Step(told[0] + (i + 1) * told[1], 0.1, 0, n=told[1], loss=2.0,
                    **({"losses": tuple(math.sin(i + j) if j else told[4]
                                        for j in range(told[1]))} if told[3]
                       else {"loss_min": 1.0, "loss_max": 3.0}))
        for i in range(told[2])])
"""Steps as a rank writes them: each event goes on where the one before ended."""
byte_counts = st.none() | st.integers(0, 1 << 40)
memory = st.builds(schema.Memory, byte_counts, st.lists(byte_counts, max_size=2).map(tuple),
                   gpu_peak=st.lists(byte_counts, max_size=3).map(tuple))
phases = st.builds(schema.Phase, st.sampled_from(["data", "forward"]),
                   st.none() | st.floats(0, 5000),
                   st.none() | small, st.none() | small, detail=st.none() | st.text(max_size=3))
starts = st.builds(schema.Start, st.just(0), st.none(), st.none(), st.none(), st.none(),
                   st.none(), attempt=st.integers(1, 3))
events = st.lists(regular | st.one_of(steps, steps, memory, phases, starts, kinds.any_event)
                  .map(lambda one: [one]), max_size=12)
times = st.floats(0, 5000)


def near(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(
        a, b, rel_tol=1e-9, abs_tol=1e-6) or not (math.isfinite(a) or math.isfinite(b))


def same(a: Series, b: Series):
    assert (a.stride, a.first, a.last, a.bad_at) == (b.stride, b.first, b.last, b.bad_at)
    assert (a.lo, a.hi, a.count, a.bad) == (b.lo, b.hi, b.count, b.bad)
    assert all(map(near, a.total, b.total)), (a.total, b.total)


def all_same(a: dict[Any, Series], b: dict[Any, Series]):
    assert set(a) == set(b)  # screens sort them
    for key, series in a.items():
        same(series, b[key])


points = st.lists(st.tuples(small, value, value, value), min_size=1, max_size=60).map(
    lambda told: sorted(told, key=lambda one: one[0]))


@given(points, points, st.sampled_from([4, 16, 2048]), st.booleans())
def test_many_values_make_the_series_of_one_after_the_other(before, told, capacity, means):
    one, many = Series(capacity), Series(capacity)
    for part in (before, told):
        xs, values, los, his = (list(column) for column in zip(*part, strict=True))
        more = (los, his) if means else (None, None)
        for x, v, lo, hi in part:
            one.add(x, v, *((lo, hi) if means else ()))
        many.add_rising(xs, values, *more)
        same(one, many)


def store() -> RunStore:
    made = RunStore(Run(Path("/nowhere/3f2a")))
    made.clock.learn(State("running", "3f2a", "toy", T0, T0))
    return made


def compare(one: RunStore, many: RunStore):
    assert repr(one.view) == repr(many.view)
    same(one.loss.all, many.loss.all)
    same(one.times.all, many.times.all)
    all_same(one.loss.ranks, many.loss.ranks)
    for name in ("allocated", "peak", "reserved", "rss"):
        all_same(getattr(one.memory, name), getattr(many.memory, name))
    same(one.memory.all_rss, many.memory.all_rss)
    same(one.memory.all_allocated, many.memory.all_allocated)
    assert set(one.recorded.values) == set(many.recorded.values)
    for key, values in one.recorded.values.items():
        other = many.recorded.values[key]
        all_same(values.ranks, other.ranks)
        assert repr((values.latest, values.began)) == repr((other.latest, other.began))


@given(events, st.lists(times, min_size=1, max_size=9), st.sets(st.integers(0, 60)))
@settings(deadline=None, max_examples=50)
def test_a_file_read_in_stretches_is_the_file_read_event_by_event(told, at, cut):
    """Whatever the events, and however much is read at a time."""
    whole, one, many = _read_again(told, at), store(), store()
    for event in whole:
        one.fold([(0, [event])])
    for begin, end in zip([0, *sorted(cut)], [*sorted(cut), None], strict=True):
        many.fold([(0, whole[begin:end])])
    compare(one, many)


def _read_again(told: list[list[schema.Event]], at: list[float]) -> list[schema.Event]:
    """The events as a reader has them, at these times."""
    whole = [event for each in told for event in each]
    for i, event in enumerate(whole):
        object.__setattr__(event, "t", T0 + at[i % len(at)])
    return [decoded(encode(event)) for event in whole]
