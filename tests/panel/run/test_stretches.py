"""Frequent events are decoded and folded many at a time: the result is that of one by one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.events.frequent import (
    EventBatch,
    MemoryLine,
    PhaseLine,
    StepLine,
    TimeLine,
    grouped,
)
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import encode
from gpu_engine.runs.folder import Run, State
from gpu_panel.charts.series import RankSeries
from gpu_panel.compare.curve import AXES, LOSS, RunCurve
from gpu_panel.run.store import RunStore

from ... import event_lines
from ...events import kinds
from ..run_kit import T0

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
phases = st.builds(schema.Phase, st.sampled_from(["data", "forward"]), st.none() | number,
                   st.none() | small, st.none() | small, detail=st.none() | st.text(max_size=3))
starts = st.builds(schema.Start, st.just(0), st.none(), st.none(), st.none(), st.none(),
                   st.none(), attempt=st.integers(1, 3))
events = st.lists(regular | st.one_of(steps, steps, memory, phases, starts, kinds.any_event)
                  .map(lambda one: [one]), max_size=12)
times = st.floats(-100, 5000)


def near(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(
        a, b, rel_tol=1e-9, abs_tol=1e-6) or not (math.isfinite(a) or math.isfinite(b))


def same(a: Series, b: Series) -> None:
    assert (a.stride, a.first, a.last, a.bad_at) == (b.stride, b.first, b.last, b.bad_at)
    assert (a.lo, a.hi, a.count, a.bad) == (b.lo, b.hi, b.count, b.bad)
    assert all(map(near, a.total, b.total)), (a.total, b.total)


def all_same(a: dict[Any, Series], b: dict[Any, Series]) -> None:
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


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), small, st.lists(
    value, min_size=1, max_size=50), st.integers(1, 9)), max_size=12))
def test_many_losses_make_the_curves_of_one_after_the_other(told):
    """Also of ranks that begin again, in whatever order their files are read."""
    one, many = RankSeries(), RankSeries()
    for rank, attempt, first, values, apart in told:
        if attempt:
            one.begin(rank, attempt)
            many.begin(rank, attempt)
        xs = range(first, first + apart * len(values), apart)
        for x, v in zip(xs, values, strict=True):
            one.put(rank, x, v, v, v)
        many.extend(rank, xs, values, values, values)
        same(one.all, many.all)
        all_same(one.ranks, many.ranks)


def store() -> RunStore:
    made = RunStore(Run(Path("/nowhere/3f2a")))
    made.clock.learn(State("running", "3f2a", "toy", T0, T0))
    return made


def compare(one: RunStore, many: RunStore) -> None:
    assert repr(one.view) == repr(many.view)
    same(one.loss.all, many.loss.all)
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
    whole = [event for each in told for event in each]
    for i, event in enumerate(whole):
        object.__setattr__(event, "t", T0 + at[i % len(at)])
    lines = [encode(event).rstrip(b"\n") for event in whole]
    plain, one, many = Tail(Path("/nowhere")), store(), store()
    for line in lines:
        event = plain._parse(line)
        assert event is not None
        one.fold([(0, [event])])
    for begin, end in zip([0, *sorted(cut)], [*sorted(cut), None], strict=True):
        many.fold([(0, grouped(lines[begin:end], plain._parse))])
    compare(one, many)


@given(events, st.lists(times, min_size=1, max_size=9), st.sampled_from(
    [LOSS, "learning rate", "eval x"]), st.none() | st.integers(1, 64))
@settings(deadline=None, max_examples=50)
def test_a_compared_curve_made_in_stretches_is_the_same(told, at, name, batch):
    whole = [event for each in told for event in each]
    for i, event in enumerate(whole):
        object.__setattr__(event, "t", T0 + at[i % len(at)])
    one, many = RunCurve(name), RunCurve(name)
    if batch:
        whole.insert(0, schema.Schedule(None, None, None, None, None, batch))
    lines, plain = [encode(event).rstrip(b"\n") for event in whole], Tail(Path("/nowhere"))
    for line in lines:
        one.add(0, plain._parse(line))
    for each in grouped(lines, plain._parse):
        many.add(0, each)
    assert list(one.names) == list(many.names)
    for axis in AXES:
        same(one.over(axis), many.over(axis))


@given(events, st.integers(0, 4000), st.binary(max_size=5))
@settings(deadline=None, max_examples=50)
def test_a_file_that_ends_anywhere_loses_what_was_cut_off(tmp_path_factory, told, at, torn):
    path = tmp_path_factory.mktemp("t") / "e"
    path.write_bytes(b"".join(encode(event) for each in told for event in each)[:at] + torn)
    one, many, plain, fast = store(), store(), Tail(path), Tail(path)
    one.fold([(0, plain.read(1 << 30))])
    while each := fast.read_many(1 << 12):
        many.fold([(0, each)])
    compare(one, many)
    assert plain.skipped == fast.skipped


words = st.sampled_from(
    ["1", "-1", "0", "-0", "1.5", "1e400", "-1e400", "5e-324", "null", "true", '"NaN"', "NaN",
     '"Infinity"', '"x"', "[]", "{}", "[1,2.5]", '["NaN",1]', "[null]", '"\\ud800"', "01",
     str(1 << 60), str((1 << 60) - 1), "1" * 30, "1" * 400, "-" + "1" * 30, "[[1]]"])


@given(st.sampled_from(["step", "memory", "phase", "step_time"]), st.lists(st.tuples(
    st.sampled_from(["t", "step", "n", "lr", "skipped", "loss", "losses", "loss_min", "rss",
                     "gpu_peak", "phase",
                     "since", "done", "detail", "seconds", "wait", "workers", "x", "kind"]),
    words), max_size=5), st.booleans())
def test_what_is_decoded_fast_is_what_the_plain_parser_finds(kind, fields, known):
    """Also of lines that are no events, or have a field twice."""
    own = '"t":1,' + {"step": '"step":4,', "memory": "", "phase": '"phase":"data",',
                      "step_time": '"step":4,"n":2,"seconds":1.5,'}[kind]
    line = ("{" + (own if known else "") + f'"kind":"{kind}"'
            + "".join(f',"{name}":{word}' for name, word in fields) + "}").encode()
    plain = Tail(Path("/nowhere"))
    event, found = plain._parse(line), grouped([line], plain._parse)
    if not (found and isinstance(found[0], EventBatch)):
        assert repr(found) == repr([event] if event is not None else [])
        return
    assert event is not None
    (one,) = (found[0].steps + found[0].memory + found[0].phases
              + found[0].times)
    assert {name: repr(getattr(one, name)) for name in one.__struct_fields__} == {
        name: repr(getattr(event, name)) for name in one.__struct_fields__}


def test_the_fast_lines_have_every_field_of_their_events():
    """Else every line with the new field would be read slowly."""
    from dataclasses import fields

    for line, kind in ((StepLine, schema.Step), (MemoryLine, schema.Memory),
                       (PhaseLine, schema.Phase), (TimeLine, schema.StepTime)):
        assert set(line.__struct_fields__) == {f.name for f in fields(kind)} - {"others"}
    common = [event_lines.line("step", {"step": 9, "lr": None, "skipped": 0, "n": 2, "loss": 1.0,
                                        "losses": [1.0, "NaN"]}),
              encode(schema.Memory(5, (1, None))), encode(schema.Phase("data", 1.0, 10))]
    (batch,) = grouped(common, lambda line: pytest_fail(line))
    assert isinstance(batch, EventBatch)
    assert (len(batch), batch.at_step, len(batch.odd)) == (3, 10, 1)
    assert json.loads(common[0])["losses"] == [1.0, "NaN"]


def pytest_fail(line: bytes) -> None:
    raise AssertionError(line)
