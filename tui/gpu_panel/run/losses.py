"""The losses of step events, added to the curves of ranks, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from gpu_engine.events import schema
from gpu_panel.charts.series import RankSeries

StepEvent = schema.Step | schema.Other


def add(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    """Add the losses of these events of a rank, in the order of its file."""
    if events and all(event.losses for event in events):
        first = events[0].step - len(events[0].losses) + 1
        values = list(chain.from_iterable(event.losses for event in events))
        if first >= 0 and all(
                event.step - len(event.losses) == before.step
                for before, event in pairwise(events)):
            # Nearly always: each step's loss, and no step is missing.
            series.extend(rank, range(first, events[-1].step + 1), values)
            return
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
    if steps:
        series.extend(rank, steps, values, los, his)
