"""The losses of step events, added to the curves of ranks, many at a time; and those of a part of a
long run step by step, for which the whole curve has no room."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.events import schema
from gpu_engine.events.frequent import StepLine
from gpu_engine.events.run_reader import RunReader
from gpu_engine.events.schema import Event
from gpu_panel.charts.series import RankSeries

StepEvent = schema.Step | schema.Other | StepLine


def add(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    steps: list[int] = []
    values, los, his = list[float](), list[float](), list[float]()
    for event in events:
        if event.losses:
            each = range(max(event.step - len(event.losses) + 1, 0), event.step + 1)
            known = event.losses[len(event.losses) - len(each):]
            steps += each
            values += known
            los += known
            his += known
        elif event.loss is not None:
            steps.append(event.step)
            values.append(event.loss)
            los.append(event.loss if event.loss_min is None else event.loss_min)
            his.append(event.loss if event.loss_max is None else event.loss_max)
    if not steps:
        return
    if all(event.losses for event in events):
        series.extend(rank, steps, values)
    else:
        series.extend(rank, steps, values, los, his)


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
