"""The spec of each attempt of a run, and what the next attempt may change.

`spec.toml` is the spec of the last attempt. When a resume changes it, the old spec is kept as
`specs/00001.toml`, named after the last attempt that used it.
"""

from __future__ import annotations

from typing import Any

from gpu_engine.common.clean import shown_set
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.files import read_inside, write_inside
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Schedule
from gpu_engine.plan.own_command import left_out
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict, read_toml
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import differences

_SPECS = "specs"


def read_spec(run: Run) -> dict[str, Any]:
    """The spec of the last attempt as a nested dict. What did not reach its own command is left
    out: older versions let that pass. Raises UserError if it can't be read."""
    return left_out(read_toml(run.path / "spec.toml", run.path))


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
        write_inside(run.path, f"{_SPECS}/{number:05d}.toml", before)
    return tuple(map(shown_set, changed))


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
