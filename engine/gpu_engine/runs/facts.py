"""What is compared of one run, read from its folder. `compare` makes rows of it."""

from __future__ import annotations

import time
from dataclasses import replace

from gpu_engine.common.clean import clean
from gpu_engine.events.view import RunView
from gpu_engine.runs import attempts, environment, notes
from gpu_engine.runs.compare import Figures, RunFacts, figures
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.state import State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import flat


def read(run: Run) -> RunFacts:
    """The facts of a run, all of whose events are read for that. Raises UserError if its spec can't
    be read."""
    return read_all(run)[0]


def read_all(run: Run) -> tuple[RunFacts, RunView]:
    """The same, and all that its events say."""
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    return with_figures(without_figures(run, follower.state), follower.state,
                        follower.view), follower.view


def without_figures(run: Run, state: State) -> RunFacts:
    """The facts of a run that do not follow from its events. Raises UserError if its spec can't be
    read."""
    name = clean(notes.read(run.path).name or state.name)
    return RunFacts(clean(run.id), name, Figures(state.state),
                    flat(from_dict(attempts.read_spec(run))), environment.read(run.path))


def with_figures(facts: RunFacts, state: State, view: RunView) -> RunFacts:
    """`facts` with the figures that the events have given so far."""
    return replace(facts, figures=figures(state, view.progress(), list(view.ranks.values()),
                                          time.time()))
