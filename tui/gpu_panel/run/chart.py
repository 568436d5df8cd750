"""The base of the run screen's two charts: each draws any of the recorded curves."""

from __future__ import annotations

from typing import ClassVar

from gpu_panel import keys
from gpu_panel.charts.curves import CurveView
from gpu_panel.run import subjects
from gpu_panel.run.marks import marks
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore
from gpu_panel.run.subjects import Subject


class ChartPane(CurveView, RunPane):
    """A chart that begins with the curves of `FIRST` and can show any other."""

    KEYS = keys.of("chart")
    FIRST: ClassVar[str]
    """The key of what it shows until the person chooses something else, and while the run has
    recorded nothing of what they chose."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.chosen: str = self.FIRST
        """The key of the curves that the person wants to see here."""
        self.subject: Subject | None = None
        """What is drawn now."""
        self._painted: object = None
        self._last: tuple[RunStore, Moment] | None = None

    def choose(self, key: str) -> None:
        """Show the curves of this key from now on."""
        if key == self.chosen:
            return
        self.chosen = key
        self.action_whole()  # the part that was zoomed in may be seconds or steps
        self.banded = None
        if self._last is not None:
            self.paint(*self._last)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(len(line.series) for line in self._lines)

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._last = store, moment
        state = (store.version, moment.rank, self.chosen)
        if state == self._painted:
            return
        self._painted = state
        found = subjects.find(store, self.chosen) or subjects.find(store, self.FIRST)
        if found is None:
            return
        self.subject, self.axes = found, found.axes
        place = list(store.ranks).index(moment.rank) if moment.rank in store.ranks else None
        self.show(found.lines(store), found.over_all(store), place,
                  marks=marks(store.moments, store.begins, store.trainings, store.began,
                              by_time=found.by_time),
                  levels=found.levels(store))
        self.entitle(found.title(store))
