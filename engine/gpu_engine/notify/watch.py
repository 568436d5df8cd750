"""What happens to one run, found out by looking at it again and again: `gpu-engine notify`'s
process and the panel ask the same questions here.

A look costs little: it reads the state, and every few seconds what the ranks have appended. It
blocks, though not for long, so a screen calls it in a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from gpu_engine.diagnose import hangs
from gpu_engine.events.paths import events_path, ranks_with_files
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import Progress, RunView
from gpu_engine.notify.messages import Event
from gpu_engine.runs import disk_room, job
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import MADE_ROOM, State

_FIGURES_EVERY = 5.0
"""Seconds between two readings of the events."""
_RANKS_EVERY = 30.0
"""Seconds between two searches for ranks that were not there before."""
_NEAR = 64 << 10
"""Bytes at the end of a file that are read where there is much more."""
_MOST_RANKS = 64
"""Ranks whose events are read."""
STANDING = 300.0
"""Seconds for which ranks must have stood still. The panel and `gpu-engine show` say so much
earlier, but an evaluation may take minutes, and nobody is to be called away for that."""
_APART = 600.0
"""Seconds at least between two standstills that are told."""
_SURE = 2
"""Looks in a row that must find a run lost, or standing still. Its process may be started again
within a moment, and after a machine's sleep everything seems to have stood still."""

FIRST = "made room"
"""The key of the first time that a run has made room for another."""

_ENDS: dict[str, Event] = {"completed": "finished", "failed": "failed", "stopped": "stopped",
                           "lost": "lost"}


@dataclass(frozen=True, slots=True)
class Happened:
    """Something to be told of a run."""

    event: Event
    key: str
    """Which attempt or standstill it was: the same end is never told twice."""
    state: State
    progress: Progress
    why: str | None = None
    """For "stalled": which ranks stand still; for "made_room": for whom. For the others the state
    says why."""


@dataclass(slots=True)
class Figures:
    """What the ends of the ranks' files say, in bounded memory and time however long they are."""

    run: Run
    view: RunView = field(default_factory=RunView)
    _tails: dict[int, Tail] = field(default_factory=dict)
    _listed: float = float("-inf")

    def read(self, now: float) -> None:
        """Take in what is new. `now`: monotonic seconds."""
        if now - self._listed >= (_RANKS_EVERY if self._tails else 0.0):
            self._listed = now
            for rank in sorted(ranks_with_files(self.run.path))[:_MOST_RANKS]:
                self._tails.setdefault(rank, Tail(events_path(self.run.path, rank)))
            self.view.add(self._tails)
        for rank, tail in self._tails.items():
            if tail.size() - tail.offset > 4 * _NEAR:
                tail.skip(keep=_NEAR)
            for event in tail.read(8 * _NEAR):
                self.view.fold(rank, event)

    def standing(self, state: State) -> str | None:
        """Which ranks have stood still for long, or why nothing was heard of them for so long, in
        one sentence; None if neither. Judged as in the panel and in `gpu-engine show`, of ranks
        that have made a step in this attempt."""
        if state.state != "running":
            return None
        stepped = [v for v in self.view.ranks.values()
                   if v.step_times and v.step_times[-1][0] >= state.began]
        still = hangs.find_alarm(stepped, time.time(), at_least=STANDING, unheard=state.unheard)
        if still is None and state.unheard:
            silent = hangs.stalled([v for v in stepped if v.rank in state.unheard], time.time(),
                                   at_least=STANDING)
            return state.reason if silent else None
        if still is None:
            return None
        full = disk_room.silence(self.run.path) if still.silent else None
        return full or "; ".join(filter(None, (still.text, state.reason)))


class RunWatch:
    """Looks at one run."""

    def __init__(self, run: Run, told: Collection[str] = (), *,
                 goes_on: Callable[[State], bool] | None = None) -> None:
        """`told`: keys of what was told before, by somebody else. `goes_on`: asked of a run on
        hosts, as `places.verbs.Followed`; None: nobody takes it up."""
        self.run = run
        self.state: State | None = None
        """As it was seen last; None: never, or the run was removed."""
        self._told = set(told)
        self._figures = Figures(run)
        self._read = self._stalled_at = float("-inf")
        self._lost = self._still = 0
        self._stall_told = False
        """Of the standstill that goes on now."""
        self._goes_on = goes_on

    @property
    def told(self) -> frozenset[str]:
        """The keys of what was told."""
        return frozenset(self._told)

    def is_over(self) -> bool:
        """Whether there is nothing more to be told now: the run was removed, or has ended and that
        was told. Looks anew, so that a resume is seen."""
        state = self.state = self._read_state()
        return state is None or state.state == "unreadable" \
            or (not state.live and _key(state) in self._told)

    def next_event(self) -> Happened | None:
        """Look once. What is returned is not returned again."""
        state = self.state = self._read_state()
        if state is None or state.state == "unreadable":
            return None
        now = time.monotonic()
        if state.live:
            self._lost = 0
            # The first time only: a night may have many.
            if FIRST not in self._told and (first := next(
                    (a for a in state.attempts if a.outcome == MADE_ROOM), None)) is not None:
                self._told.add(FIRST)
                self._figures.read(now)
                return Happened("made_room", FIRST, state, self._figures.view.progress(),
                                first.reason)
            if now - self._read >= _FIGURES_EVERY:
                self._read = now
                self._figures.read(now)
                return self._stall(state, now)
            return None
        self._lost += state.state == "lost"
        if _key(state) in self._told or (state.state == "lost" and self._lost < _SURE):
            return None
        self._told.add(_key(state))
        self._figures.read(now)
        return Happened(_ENDS[state.state], _key(state), state, self._figures.view.progress())

    def _read_state(self) -> State | None:
        if not os.path.exists(self.run.path / "plan.json"):  # noqa: PTH110  it was removed
            return None
        state = self.run.state()
        if state.live and self._goes_on is not None and not self._goes_on(state):
            return replace(state, state="lost")
        return state

    def _stall(self, state: State, now: float) -> Happened | None:
        why = self._figures.standing(state)
        self._still = self._still + 1 if why is not None else 0
        self._stall_told &= self._still > 0
        # One that comes soon after the last that was told is told later, if it goes on.
        if self._still < _SURE or self._stall_told or now - self._stalled_at < _APART:
            return None
        self._stalled_at, self._stall_told = now, True
        return Happened("stalled", f"{_key(state)} stall {time.time():.0f}", state,
                        self._figures.view.progress(), why)


def _key(state: State) -> str:
    """Says which end this is: of which attempt, seen by whose process."""
    began = state.attempts[-1].started if state.attempts else state.created
    return f"{state.state} {state.attempt} {began:.3f} {state.pid or 0}"


def where(run: Run) -> tuple[str, ...]:
    """The hosts or nodes that a run is on, if not on this machine alone."""
    known = job.read(run.path)
    if known is not None:
        return (known.nodes,) if known.nodes else ()
    plan = run.plan()
    if plan is None or not plan.on_hosts:
        return ()
    return tuple(dict.fromkeys(r.host or "this machine" for r in plan.ranks))
