"""The two charts of the run screen. Each draws any of the recorded curves."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gpu_panel import keys
from gpu_panel.charts.curves import CurveView
from gpu_panel.run import subjects
from gpu_panel.run.moments import marks
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore


class ChartPane(CurveView, RunPane):
    """A chart that begins with the curves of `FIRST` and can show any other."""

    KEYS = keys.of("chart")
    LINES = "ranks"
    OVERLAID = 3
    FIRST: ClassVar[str]
    """The key of what it shows until the person chooses something else, and while the run has
    recorded nothing of what they chose."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.chosen: str = self.FIRST
        """The key of the curves that the person wants to see here."""
        self._painted: object = None
        self._last: tuple[RunStore, Moment] | None = None

    @property
    def is_blank(self) -> bool:
        return not any(len(line.series) for line in self.lines)

    def choose(self, key: str) -> None:
        self.chosen = key
        self.action_whole()  # the part that was zoomed in may be seconds or steps
        if self._last is not None:
            self.paint(*self._last)

    def anew(self) -> None:
        self._painted = self._last = None
        self.action_whole()

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._last = store, moment
        state = (store.version, moment.rank, self.chosen)
        if state == self._painted:
            return
        self._painted = state
        subject = subjects.find(store, self.chosen) or subjects.find(store, self.FIRST)
        if subject is None:
            return
        # Of what has ended nothing more is to come.
        empty = "reading …" if not store.caught_up else subject.axes.empty \
            if store.state is None or store.state.live else subject.axes.empty.removesuffix(" yet")
        self.axes = replace(subject.axes, empty=empty)
        place = list(store.ranks).index(moment.rank) if moment.rank in store.ranks else None
        self.show(
            subject.lines(store), subject.over_all(store), place,
            marks=marks(store.moments, store.view.begins, store.view.trainings, store.clock,
                        by_time=subject.by_time))
        self.entitle(subject.title(store))


class LossPane(ChartPane):
    """Its own keys work on the whole screen, as most people watch this chart."""

    NAME = TITLE = "loss"
    FIRST = subjects.LOSS
    KEYS = keys.of("chart", "loss")
    HELP = """The loss of every rank, step by step, or what c chooses. Each rank sees other
examples, so that their losses differ; those that agree to a dot are one line. Of more than three
that differ, range and mean are drawn, and the odd one on top. l changes the scale, m smooths. ┊
marks where an attempt or another training begins, ◆ an evaluation, ▪ a checkpoint; × marks a value
that is not finite."""
    DEFAULT_CSS = "LossPane { width: 62fr; }"


class MemoryPane(ChartPane):
    """GiB over the time since the run began, until something else is chosen."""

    NAME = TITLE = "memory"
    FIRST = subjects.MEMORY
    HELP = """What PyTorch has allocated on every device, or what c chooses; the dotted line is its
peak. On CPU slots, the memory of the ranks' processes."""
    DEFAULT_CSS = "MemoryPane { width: 38fr; }"
