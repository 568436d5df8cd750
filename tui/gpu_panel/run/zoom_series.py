"""The losses of a part of a long run, step by step, for which the whole curve has no room."""

from __future__ import annotations

from gpu_engine.events import schema
from gpu_engine.events.run_reader import RunReader
from gpu_engine.events.schema import Event
from gpu_panel.charts.series import RankSeries
from gpu_panel.run import losses

MOST = 32 << 20
"""Bytes of events that are read for it: about a third of a second."""


def read(reader: RunReader, first: int, last: int) -> RankSeries | None:
    """The losses of the steps from `first` to `last`, and of a few beside them, as far as `reader`
    has got; None if that takes too long. Blocks."""
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
                losses.add(series, rank, near)
    return series
