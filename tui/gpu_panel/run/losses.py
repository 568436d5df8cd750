"""The losses of step events, added to the curves of ranks, many at a time; and those of a part of a
long run step by step, for which the whole curve has no room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import eq, sub

from gpu_engine.events import schema
from gpu_engine.events.frequent import StepLine
from gpu_engine.events.run_reader import RunReader
from gpu_engine.events.schema import Event
from gpu_panel.charts.series import RankSeries

StepEvent = schema.Step | schema.Other | StepLine


def add(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    for some in _alike(events):
        first = some[0]
        if not first.losses:
            _add_means(series, rank, some)
        elif len(some) == 1:
            series.add(rank, first.step, first.losses)
        else:
            series.add(rank, some[-1].step,
                       list(chain.from_iterable([event.losses for event in some])))


def _alike(events: Sequence[StepEvent]) -> Iterator[Sequence[StepEvent]]:
    """Parts of `events` that can be added at once: either all list the loss of each step, and each
    goes on where the one before ended, or all have only the mean of theirs."""
    sizes = [len(event.losses) for event in events]
    lasts = [event.step for event in events]
    if all(sizes) and all(map(eq, lasts, map(sub, lasts[1:], sizes[1:]))):  # nearly always
        yield events
        return
    begin = 0
    for i in range(1, len(events)):
        goes_on = sizes[i - 1] and lasts[i] - sizes[i] == lasts[i - 1] if sizes[i] \
            else not sizes[i - 1]
        if not goes_on:
            yield events[begin:i]
            begin = i
    yield events[begin:]


def _add_means(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    steps, means, los, his = [], [], [], []
    for event in events:
        if event.loss is None:
            continue
        if event.loss_min is None or event.loss_max is None or (steps and event.step <= steps[-1]):
            if steps:
                series.extend(rank, steps, means, los, his)
                steps, means, los, his = [], [], [], []
            series.put(rank, event.step, event.loss, event.loss_min, event.loss_max)
            continue
        steps.append(event.step)
        means.append(event.loss)
        los.append(event.loss_min)
        his.append(event.loss_max)
    if steps:
        series.extend(rank, steps, means, los, his)


MOST = 32 << 20
"""Bytes of events that are read for it: about a third of a second."""


def zoom_series(reader: RunReader, first: int, last: int) -> RankSeries | None:
    """The losses from `first` to `last`, as far as `reader` has got; None: too many. Blocks."""
    told = reader.read_again(first, last, MOST)
    if told is None:
        return None
    series = RankSeries()
    for rank, each in told.items():
        for one in each:
            if isinstance(one, schema.Start):
                series.begin(rank, one.attempt)
                continue
            steps = ([one] if isinstance(one, schema.Step) else []) if isinstance(one, Event) \
                else one.steps
            near = [e for e in steps if e.n and e.step >= first and e.step - e.n < last]
            if near:
                add(series, rank, near)
    return series
