"""What is known about several runs: those that a person has chosen, or those of a sweep.

Each is read and folded as for its own screen, one after the other, so that a panel with sixteen of
them answers as quickly as with one. Of a sweep with more, the table is of all, the curves are of
the first ones.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.series import Series
from gpu_engine.runs import compare
from gpu_engine.runs.compare import Figures, RunFacts
from gpu_engine.runs.digest import By, figures_of
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run
from gpu_engine.sweep import study
from gpu_engine.sweep.group import Group, default_by, find, read
from gpu_engine.sweep.table import RUNNING, WAITING, One, Point, assigned, points
from gpu_panel import readonly
from gpu_panel.charts.curves import Curve
from gpu_panel.common.background import in_thread
from gpu_panel.common.reading import Followed
from gpu_panel.run import recorded, subjects
from gpu_panel.run.snapshot import Look
from gpu_panel.run.store import RunStore
from gpu_panel.run.subjects import LOSS
from gpu_panel.several.curve import joined, over_time

TRIES = "tries"
"""In place of a curve's key: the best so far, against the tries of a search."""
MOST = 16
"""The most runs whose curves are drawn at once."""
CURVED = 8
"""Ranks of each run, the first ones, whose values make the curve."""
_CURVES = 512
"""Curves of recorded values that are kept of a run: 10 MiB."""
_LIVE_EVERY, _DONE_EVERY = 0.5, 5.0
"""Seconds between reads while a run is live, and when none is."""
_GATHERED_EVERY = 2.0
"""Seconds between two looks at all members of a sweep."""


class Compared(RunStore):
    """One of the runs, with its settings and where it ran."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, curved=CURVED, most=_CURVES)
        self.id = clean(run.id)
        """Its id, to be shown: a folder may have any name."""
        self.problem: str | None = None
        self._told = RunFacts(self.id, self.id, Figures("…"), {}, Environment())
        self._curve: tuple[object, Series] = None, Series()

    @property
    def facts(self) -> RunFacts:
        if self.state is None:
            return self._told
        return compare.with_figures(self._told, self.state, self.view)

    def _poll(self) -> Look:
        seen = super()._poll()
        if self.state is None or self.state.attempt != seen.state.attempt:
            try:
                self._told, self.problem = compare.without_figures(self.run, seen.state), None
            except (UserError, OSError) as err:
                self._told, self.problem = replace(self._told, name=seen.state.name), str(err)
        return seen

    def curve(self, key: str, *, by_time: bool = False) -> Series:
        """The mean of its ranks, over steps or over the milliseconds of the run; a value that is
        drawn over time anyway over its seconds. Empty where it has no such value."""
        if key == LOSS and not len(self.loss.all):  # a script's may be known only by what it logs
            key = recorded.LOGGED + LOSS
        now = key, by_time, self.version
        if now != self._curve[0]:
            subject = subjects.find(self, key)
            found = Series() if subject is None else subject.over_all(self) or joined(
                [line.series for line in subject.lines(self) if not line.faint])
            if subject is not None and by_time and not subject.by_time:
                found = over_time(found, self.times.all)
            self._curve = now, found
        return self._curve[1]


class SeveralStore(Followed):
    def __init__(self, runs: Sequence[Run] = (), sweep: str = "") -> None:
        """`sweep`: the id of the sweep whose members they are, which are found then."""
        super().__init__()
        self.sweep = sweep
        self.runs = [Compared(run) for run in runs[:MOST]]
        self.key = LOSS
        """What the curves show."""
        self.by_time = False
        """Whether they are drawn over time and not over steps."""
        self.chosen = False
        """Whether a person has said what they show. Before, those of a search are its tries, as
        soon as one has a value."""
        self.read_share = 0.0
        self.group: Group | None = None
        self.members: list[One] = []
        """All members as they were read last."""
        self.points: list[Point] = []
        """The lines of the sweep's table, the best first."""
        self.by = By()
        """The value that decides which is best."""
        self.search: study.SoFar | None = None
        """How far a search has got. What matters is of when a person asked for it last."""
        self.stale = True
        """Whether members may have changed which had all ended."""
        self._gathered = -math.inf
        self._seen: object = None

    @property
    def facts(self) -> list[RunFacts]:
        return [one.facts for one in self.runs]

    @property
    def goes_on(self) -> bool:
        """Whether members of the sweep may still change by themselves, or get more."""
        return any(one.kind in (RUNNING, WAITING) for one in self.members) or (
            self.search is not None and self.search.asks)

    @property
    def live(self) -> bool:
        """Whether anything may still change by itself."""
        return self.goes_on or any(one.state is None or one.state.live for one in self.runs)

    @property
    def names(self) -> dict[str, tuple[str, int]]:
        """Key → the name of what can be drawn, and how many runs have it."""
        every = [subject for one in self.runs for subject in subjects.every(one)]
        many = Counter(subject.key for subject in every)
        tries = {} if self.search is None else {
            TRIES: ("best so far, over tries", len(self.members))}
        return tries | {
            subject.key: (name_of(subject), many[subject.key]) for subject in every}

    @property
    def subject(self) -> subjects.Subject:
        """What the curves show, as the first run that has it says it."""
        return next(subject for key in (self.key, LOSS) for one in self.runs
                    if (subject := subjects.find(one, key)) is not None)

    @property
    def title(self) -> str:
        """Of the sweep: how many of its members have ended how."""
        return "" if self.group is None else f"sweep {self.group.id} {self.group.name} ─ " \
            f"{self.group.summary(self.members)}"

    @property
    def best(self) -> int | None:
        """The number of the run with which a sweep's table begins, if that has a value."""
        best = [one.id for p in self.points[:1] if p.best.mean is not None for one in p.members]
        return next((i for i, one in enumerate(self.runs) if one.run.id in best), None)

    def run(self, ident: str) -> Run:
        every = [one.run for one in self.runs] if self.group is None \
            else [run for run, _ in self.group.members]
        return next(run for run in every if ident in (run.id, clean(run.id)))

    def label(self, run: Compared) -> str:
        """What stands in the legend: "lr=.1 #2" of a sweep, else "3f2a digits"."""
        member = next((one for one in self.members if one.id == run.run.id), None)
        if member is None or not member.values:
            return clean(f"{run.id} {run.facts.name}")
        return assigned(member.values) + (f" #{member.repeat}" if member.repeat is not None else "")

    def curves(self) -> list[Curve]:
        """The lines of those runs that have points."""
        return [Curve(i, self.label(one), series) for i, one in enumerate(self.runs)
                if len(series := one.curve(self.key, by_time=self.by_time))]

    def show(self, key: str, by_time: bool) -> None:
        self.key, self.by_time, self.chosen = key, by_time, True
        self.version += 1

    def decide(self, by: By) -> None:
        self.by = by
        self.points = points(self.members, by)
        self.version += 1

    # --- reading -------------------------------------------------------------------------------

    async def read_on(self) -> float:
        now = time.monotonic()
        if self.sweep and (self.stale or (
                self.goes_on and now - self._gathered >= _GATHERED_EVERY)):
            self.stale, self._gathered = False, now
            group, members, by, search = await in_thread(self._gather)
            drawn = {one.run.id for one in self.runs}
            self.runs += [Compared(run) for run, _ in group.members[:MOST] if run.id not in drawn]
            self.members, by = members, self.by if self.group is not None else by
            self.group = group
            if search is not None and self.search is not None:
                search = replace(search, matters=self.search.matters, asked=self.search.asked)
            self.search = search
            if search is not None and search.best and not self.chosen:
                self.key = TRIES
            self.decide(by)
        waits = [await one.read_on() for one in self.runs]
        self.caught_up = all(one.caught_up for one in self.runs)
        self.read_share = sum(one.read_share for one in self.runs) / max(len(self.runs), 1)
        seen = self.caught_up, [one.version for one in self.runs]
        self.version += seen != self._seen
        self._seen = seen
        return 0.0 if 0.0 in waits else _LIVE_EVERY if self.live else _DONE_EVERY

    def _gather(self) -> tuple[Group, list[One], By, study.SoFar | None]:
        """The sweep, its members, what decides unless a person says otherwise, and how far a search
        has got. Blocks. Raises UserError if it is gone."""
        # A search may have new members, also one that was stopped and has been let go on.
        group = self.group if self.group is not None and self.group.search is None \
            else find(self.sweep)
        members = read(group, partial(figures_of, keep=not readonly.on))
        return group, members, default_by(group, members), study.so_far(group, members)

    async def ask_what_matters(self) -> None:
        """Have Optuna say it, in a process of its own. Raises UserError."""
        search, group, members = self.search, self.group, self.members
        if search is None or group is None:
            return
        told = await in_thread(lambda: study.with_shares(search, group, members))
        if self.search is not None:
            self.search = replace(self.search, matters=told.matters, asked=told.asked)
            self.version += 1


def name_of(subject: subjects.Subject) -> str:
    return subject.name + " of a rank" * (subject.key == recorded.SAMPLES)
