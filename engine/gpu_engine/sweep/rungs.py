"""Members of a sweep compared before their end, at rungs: shares of their budget, which is
run.limit or their steps. Whoever holds a member together records where it stands at a rung, and
reads what others have recorded there: its supervisor, or of a run on hosts the process here. What
counts was known at the rung, so that it does not matter how much later it is compared.

`run.stop_worse` stops a member by the median of those before it. With `run.halving` every member
rests at a rung, and `due` says which go on: once none runs any more, with `run.asha` before.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_engine.common import units
from gpu_engine.events.rank_view import RankView
from gpu_engine.runs import digest, sweep, trust
from gpu_engine.runs.folder import Run, Rung, State, each_run
from gpu_engine.runs.sweep import Member
from gpu_engine.spec.schema import RunSpec

_QUARTERS = (0.25, 0.5, 0.75)
FIRST = 3
"""Members that are not compared at a rung, as they are the first there."""


def worse_than(best: float | None, others: Sequence[float | None], *, largest: bool) -> int | None:
    """Than how many of `others` a member with this `best` value is worse, if it is worse than their
    median; else, or if they are too few, None. None as a value is worse than any number."""
    own, *scores = [_score(value, largest) for value in (best, *others)]
    if len(scores) < FIRST or own <= statistics.median(scores):
        return None
    return sum(score < own for score in scores)


def due(states: Mapping[str, State], of: int, factor: int, *, largest: bool, asha: bool = False
        ) -> list[str]:
    """Which of a sweep's members, by their ids, go on from the rung at which they rest: once none
    is live, as many as are to pass that rung of the `of` that were submitted, the best first; all,
    if none had a value there. `asha`: whoever is live, those in the best 1/`factor` of all that
    have got to that rung so far."""
    found = list[str]()
    for level in range(1, _levels(of, factor) + 1):
        there = {name: s for name, s in states.items() if len(s.rungs) >= level}
        scores = {name: _score(s.rungs[level - 1].best, largest) for name, s in there.items()}
        resting = {name for name, s in there.items() if len(s.rungs) == level and s.rests}
        # Of equals, those that have gone on come first.
        order = sorted(there, key=lambda name: (scores[name], name in resting))
        rest = [name for name in order if name in resting]
        known = [name for name in rest if scores[name] < math.inf]
        if asha:
            first = {*order[:len(order) // factor]}
            many = sum(name in first for name in known)
        elif all(score == math.inf for score in scores.values()):
            known, many = rest, len(rest)  # nobody is known to be worse than another
        else:
            many = of // factor ** level - (len(there) - len(rest))
        found += known[:max(many, 0)]
    return [] if not asha and any(state.live for state in states.values()) else found


def _score(best: float | None, largest: bool) -> float:
    return math.inf if best is None else -best if largest else best


def _levels(of: int, factor: int) -> int:
    """At how many rungs `of` members rest."""
    return 0 if of < factor else 1 + _levels(of // factor, factor)


class Rungs:
    """Compares one member with the others."""

    def __init__(self, run: Run, spec: RunSpec, member: Member, past: float) -> None:
        """`past`: the share of the last rung that it has got to."""
        self.run, self.spec, self.member, self.past = run, spec, member, past
        self.factor = spec.run.halving
        levels = range(_levels(member.of, self.factor), 0, -1) if self.factor else ()
        self.shares = [self.factor ** -level for level in levels] if self.factor else _QUARTERS
        self.asked = spec.run.best or spec.train.best

    @classmethod
    def of(cls, run: Run) -> Rungs | None:
        """None if the run is to be compared with no others."""
        plan, member, rungs = run.plan(), sweep.read(run.path), run.state().rungs
        if plan is None or member is None or not (plan.spec.run.stop_worse
                                                  or plan.spec.run.halving):
            return None
        return cls(run, plan.spec, member, rungs[-1].share if rungs else 0.0)

    @property
    def next(self) -> float | None:
        """The share of its budget at which it is compared next; None: it is not any more."""
        return next((s for s in self.shares if s > self.past), None)

    def __call__(self, state: State, ranks: Iterable[RankView], ends: bool = False,
                 heard: float | None = None, skew: float = 0.0) -> Rung | None:
        """The next rung, with why the run does not go on from there; None: it has not got there.
        `ranks`: what they have said, until `heard`, Unix seconds (None: now), by a clock that is
        `skew` seconds ahead of this one. `ends`: the run ends by itself."""
        share, views = self.next, list(ranks)
        if share is None:
            return None
        step = min((v.at_step if v.step is None else v.step for v in views
                    if v.at_step is not None), default=None)
        total = self.spec.train.steps or next((v.total_steps for v in views if v.total_steps), None)
        limit, now = self.spec.run.limit or 0.0, time.time()
        last = share * total if total else math.inf
        end = state.until - limit * (1 - share) if state.until else math.inf
        if step is not None and step > last:  # so that what came after that step is recorded too
            end, step, where = math.inf, int(last), f"at step {int(last):,}"
        elif (now if heard is None else heard) >= end:
            last, where = math.inf, f"after {units.clock(share * limit)}"
        else:
            return None
        self.past = share
        values = digest.figures(self.run.path, step=last, t=end + skew).values
        by = digest.compared_by(self.asked, values)
        last = values[by.name].last if by.name in values else None
        if self.factor is None and last is None:
            return None  # it has no value yet, which is no worse than another's
        best = by.best(values)
        rung = Rung(share, now, step, best, state.attempt)
        if self.factor is not None:
            many = self.member.of // self.factor ** (self.shares.index(share) + 1)
            lacks = "" if best is not None else f"; it has no {by.name} yet" if last is None \
                else f"; its {by.name} is {last}"
            goes_on = f"until it is in the best 1/{self.factor} of those that got there" \
                if self.spec.run.asha else f"for the best {many} of {self.member.of} to go on"
            why = f"rests {where} {goes_on}{lacks}"
        else:
            others = self._others(rung)
            worse = worse_than(best, others, largest=by.largest)
            why = f"worse than {worse} of {len(others)} {where}" if worse else None
        return replace(rung, why=None if ends or any(v.over for v in views) else why)

    def _others(self, rung: Rung) -> list[float | None]:
        """The best values of those that got to this rung before and have not failed. Only what this
        home has started may stop a run."""
        found = list[float | None]()
        for run in each_run(self.run.path.parent):
            member = sweep.read(run.path)
            if member is None or member.sweep != self.member.sweep:
                continue
            state = run.state()
            if trust.started_here(run.path) and state.state not in ("failed", "lost"):
                found += [r.best for r in state.rungs if r.share == rung.share and r.t < rung.t]
        return found
