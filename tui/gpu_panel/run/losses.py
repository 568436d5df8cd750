"""The losses of step events, added to the curves of ranks, many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import eq, sub
from typing import TYPE_CHECKING

from gpu_engine.events import schema
from gpu_panel.charts.series import RankSeries

if TYPE_CHECKING:
    from gpu_engine.events.frequent import StepLine

    StepEvent = schema.Step | schema.Other | StepLine


def add(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    """Add the losses of the events, in this order."""
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
    """Add the mean, the least and the greatest loss of each event."""
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
