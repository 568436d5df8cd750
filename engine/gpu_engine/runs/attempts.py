"""The spec of each attempt of a run, and what the next attempt may change.

`spec.toml` is the spec of the last attempt. When a resume changes it, the old spec is kept as
`specs/00001.toml`, named after the last attempt that used it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu_engine.common.clean import shown_set
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.files import read_inside, write_inside
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Schedule
from gpu_engine.plan.own_command import left_out
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import AttemptRecord, State
from gpu_engine.spec.read import from_dict, read_toml
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import differences

_SPECS = "specs"


def read_spec(run: Run, number: int | None = None) -> dict[str, Any]:
    """The spec of attempt `number` (None: the last) as a nested dict. What did not reach its own
    command is left out: older versions let that pass. Raises UserError if there is no such attempt
    or its spec can't be read."""
    return left_out(read_toml(_spec_of(run, number), run.path))


def _spec_of(run: Run, number: int | None) -> Path:
    last = run.state().attempt
    if number is None or number == last:
        return run.path / "spec.toml"
    if not 1 <= number < last:
        raise UserError(f"run {run.id} has no attempt {number}; its attempts are 1 to {last}")
    kept = [n for n in _numbers(run.path) if n >= number]
    return _file(run.path, min(kept)) if kept else run.path / "spec.toml"


def save(run: Run, number: int, spec_toml: str) -> tuple[str, ...]:
    """Keep a copy of `spec.toml`, the spec of attempt `number`, if the new text `spec_toml` differs
    from it. Returns the differences as `key=value`, with secrets masked. Raises OSError."""
    import tomllib  # late: a rank may have Python 3.10

    path = run.path / "spec.toml"
    try:
        before = read_inside(run.path, path.name).decode()
        changed = tuple(differences(from_dict(read_toml(path, run.path)),
                                    from_dict(tomllib.loads(spec_toml))))
    except (OSError, UnicodeDecodeError, UserError):
        return ()
    if changed:
        (run.path / _SPECS).mkdir(mode=0o700, exist_ok=True)
        write_inside(run.path, f"{_SPECS}/{_file(run.path, number).name}", before)
    return tuple(map(shown_set, changed))


def last_good(state: State) -> AttemptRecord | None:
    """The last attempt that completed or was stopped by a person; None if there is none."""
    good = [a for a in state.attempts if a.outcome in ("completed", "stopped")]
    return good[-1] if good else None


def failed_settings(run: Run, state: State) -> tuple[int, tuple[str, ...]] | None:
    """The settings that the last attempt, which failed, has otherwise than the last good one.

    Returns (number of that good attempt, or 1 if none was good; the differences as `key=value`).
    None if the last attempt did not fail or nothing differs. Raises UserError if a spec can't be
    read.
    """
    if state.state in ("completed", "stopped") or len(state.attempts) < 2:
        return None
    good = last_good(state)
    number = good.number if good is not None else state.attempts[0].number
    if number == state.attempt:
        return None
    other = differences(from_dict(read_spec(run, number)), from_dict(read_spec(run)))
    return (number, tuple(map(shown_set, other))) if other else None


def check_length(run: Run, spec: RunSpec, checkpoint: str | None = None) -> None:
    """Raises SpecError if `spec` has fewer steps than `checkpoint` (None: the newest) has done.
    Such an attempt would end at once and look as if it had trained that far only."""
    checkpoint = checkpoint or leftovers.last_checkpoint(run.path)
    digits = (checkpoint or "").removeprefix("step-")
    if spec.task.use is None or not digits.isdecimal():
        return
    done = int(digits)
    if spec.train.steps is not None:
        key, length, total = "train.steps", spec.train.steps, spec.train.steps
        words, enough = "", f"{done:,}"
    else:
        schedule = next(backwards(run.events(0), Schedule), None)
        if schedule is None or not (each := schedule.steps_per_epoch):
            return
        key, length = "train.epochs", spec.train.epochs or 1
        total = length * each
        words, enough = f"that is {total:,} steps, and ", str(-(-done // each))
    if total < done:
        raise SpecError([Problem(key, length, f"{words}{done:,} steps are done ({checkpoint}); "
                                              f"use {enough} or more, or start a new run")])


def _numbers(path: Path) -> list[int]:
    try:
        names = os.listdir(path / _SPECS)  # noqa: PTH208
    except OSError:
        return []
    return sorted(int(n[:-5]) for n in names if n.endswith(".toml") and n[:-5].isdecimal())


def _file(path: Path, number: int) -> Path:
    return path / _SPECS / f"{number:05d}.toml"
