"""What the members of a sweep have done, as Optuna takes it; and the way to the child that has
Optuna (`ask.py`). To look needs nothing of what starts runs."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked
from gpu_engine.common.programs import own_environment, own_program
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import State
from gpu_engine.sweep import group
from gpu_engine.sweep.kept import read
from gpu_engine.sweep.table import DONE, STOPPED, One, assigned, short

LEAST = 10
"""Tries that are done before it is said which values matter: as many as Optuna draws at first."""
RANDOM = "random"
_TIMEOUT = 300.0
"""Seconds for an answer: some 18 after a thousand tries."""


def ask(axes: Mapping[str, str], seed: int, largest: bool, tries: Sequence[dict[str, Any]],
        refused: Sequence[Sequence[str]] = (), **more: Any) -> dict[str, Any]:
    """The answer of the child. Raises UserError."""
    question = json.dumps({"axes": axes, "seed": seed, "largest": largest, "tries": tries,
                           "refused": refused} | more)
    try:
        done = subprocess.run(own_program("gpu_engine.sweep.ask"), input=question, cwd="/",
                              capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
                              env=own_environment(), check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise UserError(f"Optuna can't be asked: {err}") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise UserError(f"Optuna can't be asked: {said[-1]}") from None


def tries_of(found: group.Group, members: Sequence[One]) -> list[dict[str, Any]]:
    """What the members have done, one for each combination of values, in the order in which they
    were asked for."""
    ones, by = {one.id: one for one in members}, group.default_by(found, members)
    points = dict[tuple[str, ...], list[tuple[State, One]]]()
    for run, member in found.members:
        if run.id in ones:
            points.setdefault(tuple(member.values.values()), []).append(
                (run.state(), ones[run.id]))
    tried = list[dict[str, Any]]()
    for values, pairs in points.items():
        states = [state for state, _ in pairs]
        live = any(state.live for state in states)
        known = [] if live else [best for _, one in pairs if one.kind in (DONE, STOPPED)
                                 and (best := one.best(by)) is not None]
        # A run that was stopped is no match for one that came to its end.
        state = "RUNNING" if live else "FAIL" if not known else "PRUNED" \
            if any(state.state == "stopped" for state in states) else "COMPLETE"
        tried.append({
            "values": values, "runs": [one.id for _, one in pairs], "state": state,
            "value": math.fsum(known) / len(known) if known else None,
            "step": max(one.steps or 0 for _, one in pairs),
            "begun": min(state.created for state in states),
            "ended": None if live else max(s.ended or s.created for s in states)})
    return tried


@dataclass(frozen=True, slots=True)
class SoFar:
    """How far a search has got."""

    how: str
    """What chose the values: "tpe", or RANDOM."""
    of: int
    """How many members it is to have."""
    asks: bool
    """Whether it asks for more, as soon as a place has room."""
    why: str | None
    """Why it does not at the moment."""
    best: tuple[tuple[int, float], ...]
    """Each try that was the best so far, by its number from 1, with its value."""
    matters: dict[str, float]
    """How much each value matters, as shares of 1, by Optuna; empty where it does not say."""
    asked: int
    """How many tries had completed when it was asked for that; 0: it was not asked."""
    by: str
    """The name of the value that decides."""
    tries: int
    """How many combinations it is to try."""
    asked_for: int
    """How many there are, also those that run or wait."""
    tried: int
    """How many of them have come to an end."""
    completed: int
    """How many of those have completed, with a value."""
    reached: tuple[tuple[int, float], ...]
    """Each try with a value, by its number, with it; also one that was stopped early."""
    leader: dict[str, str]
    """The values of the best try."""

    @property
    def line(self) -> str:
        """"12 of 40 tried, best loss 0.0416 at try 9 (lr=3e-3 width=128)"."""
        text = f"{self.tried} of {self.tries} tried"
        if self.best:
            at, value = self.best[-1]
            text += f", best {self.by} {units.loss(value)} at try {at} ({assigned(self.leader)})"
        return clean(text, None)

    def lines(self) -> list[str]:
        """The same as text."""
        how = "asks for no more" if not self.asks else \
            "asks for the next values when a place has room" if self.why is None else \
            f"asks for nothing: {self.why}; gpu-engine queue has it ask again"
        out = [] if self.how == RANDOM else [
            f"search {self.how}: {units.counted(self.of, 'run')} at most; it {how}"]
        out.append(self.line)
        if self.best:
            out.append("best so far, and at which try: " + ", ".join(
                f"{units.loss(value)} ({at})" for at, value in self.best[-8:]))
        if self.matters:
            shares = (f"{key} {units.share(share)}" for key, share in zip(
                short(list(self.matters)), self.matters.values(), strict=True))
            out.append(f"matters for the better half (Optuna, after {self.asked} tries): "
                       f"{', '.join(shares)}")
        return [clean(line, None) for line in out]


def so_far(found: group.Group, members: Sequence[One]) -> SoFar | None:
    """How far a search, or one that draws, has got; None for other sweeps. Starts nothing: what
    matters is not in it."""
    first = found.members[0][1]
    if not first.axes:
        return None
    by, tries = group.default_by(found, members), tries_of(found, members)
    best, order = list[tuple[int, float]](), -1 if by.largest else 1
    for at, one in enumerate(tries, 1):
        if one["state"] == "COMPLETE" and (
                not best or order * one["value"] < order * best[-1][1]):
            best.append((at, one["value"]))
    kept, why = read(paths.queue_folder(), found.id), None
    if kept is not None:
        alive = locked(waiting.sweep_lock(paths.queue_folder(), found.id))
        why = kept.why or (None if alive else "its process was ended")
    repeats = max(member.repeat or 1 for _, member in found.members)
    return SoFar(
        found.search or RANDOM, first.of, kept is not None, why, tuple(best), {}, 0, by.name,
        first.of // repeats, len(tries), sum(one["state"] != "RUNNING" for one in tries),
        sum(one["state"] == "COMPLETE" for one in tries),
        tuple((at, one["value"]) for at, one in enumerate(tries, 1) if one["value"] is not None),
        dict(zip(found.keys, tries[best[-1][0] - 1]["values"], strict=True)) if best else {})


def with_shares(progress: SoFar, found: group.Group, members: Sequence[One]) -> SoFar:
    """The same with how much each value matters, which a child is asked for; before LEAST are done
    it stays as it is. Blocks. Raises UserError."""
    if progress.completed < LEAST:
        return progress
    largest, tries = group.default_by(found, members).largest, tries_of(found, members)
    shares = ask(_axes(found), 0, largest, tries, matters=True)["matters"]
    return replace(progress, matters=shares, asked=progress.completed)


def write(found: group.Group, url: str) -> int:
    """Write the tries into a database of Optuna's, as a study named as the sweep. Returns how many.
    Raises UserError."""
    members = group.read(found)
    tries = tries_of(found, members)
    ask(_axes(found), 0, group.default_by(found, members).largest, tries, url=url, name=found.id)
    return len(tries)


def _axes(found: group.Group) -> dict[str, str]:
    """What the values were taken from; of a grid whose values are numbers, from the least to the
    greatest."""
    told = dict(found.members[0][1].axes)
    for key in found.keys:
        values = list(dict.fromkeys(member.values[key] for _, member in found.members))
        try:
            ends = min(values, key=float), max(values, key=float)
            told.setdefault(key, "..".join(ends))
        except ValueError:
            told.setdefault(key, ",".join(values))
    return told
