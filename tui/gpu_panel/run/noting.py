"""A person's note at a moment of the run: which moment, and the question for its text."""

from __future__ import annotations

from gpu_engine.runs import chart_annotations
from gpu_panel.common.dialogs import AskLine
from gpu_panel.run.chart import ChartPane
from gpu_panel.run.store import RunStore


def place_of(store: RunStore, now: float, chart: ChartPane | None) -> chart_annotations.Mark | None:
    """Where a note goes: at the reading line of `chart` if it shows one, else at the last step.
    With the text of the note that is there already. None if nothing is known yet."""
    if chart is not None and chart.cross is not None and chart.subject is not None:
        by_time, at = chart.subject.by_time, chart.cross
        mark = chart_annotations.Mark("", t=store.clock.moment(at)) if by_time \
            else chart_annotations.Mark("", step=at)
    else:
        step = store.view.progress().step
        live = store.state is not None and store.state.live
        if step is None and not live:
            return None
        mark = chart_annotations.Mark("", step=step, t=now if live else None)
    return next((n for n in store.moments.notes if (n.step, n.t) == (mark.step, mark.t)), mark)


def ask_for_note(place: chart_annotations.Mark) -> AskLine:
    """The question for the text of a note at `place`."""
    where = "the crosshair" if place.step is None else f"step {place.step:,}"
    return AskLine(f"Note at {where}", place.text, "Charts mark it with ✎, and show its text at "
                   "the crosshair. An empty text removes it.", may_be_empty=True,
                   longest=chart_annotations.LONGEST)
