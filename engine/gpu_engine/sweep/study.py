"""What the members of a sweep have done, as Optuna takes it; and the way to the child that has
Optuna (`ask.py`). To look needs nothing of what starts runs."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.common.programs import own_environment, own_program
from gpu_engine.runs.folder import State
from gpu_engine.sweep import group
from gpu_engine.sweep.table import One

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
        known = [] if live else [best for _, one in pairs if (best := one.best(by)) is not None]
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


def matters(found: group.Group, members: Sequence[One]) -> dict[str, float]:
    """How much each value matters, as shares of 1, by Optuna; empty where it does not say."""
    by = group.default_by(found, members)
    try:
        return ask(_axes(found), 0, by.largest, tries_of(found, members), matters=True)["matters"]
    except UserError:  # it was removed since
        return {}


def write(found: group.Group, url: str) -> int:
    """Write the tries into a database of Optuna's. Returns how many. Raises UserError."""
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
