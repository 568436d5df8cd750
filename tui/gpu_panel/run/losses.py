"""The losses of step events, added to the curves of ranks, many at a time."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.events import schema
from gpu_panel.charts.series import RankSeries

StepEvent = schema.Step | schema.Other


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
