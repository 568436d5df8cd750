"""Exports what a run has recorded to a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_engine.export import targets
from gpu_engine.export.rows import Row, Source
from gpu_engine.export.targets import About
from gpu_engine.runs import attempts, notes
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import for_people, to_dict


class Failed(UserError):
    """The export can't be finished, for a reason outside the command line: exit code 1."""

    title = "The export failed"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    run: str
    where: str
    """For people."""
    rows: int
    last_step: int | None
    state: str
    live: bool
    skipped: int
    """Lines of events files that can't be read."""


def export(run: Run, to: str, out: Path | None, *, several: bool = False,
           project: str | None = None) -> Exported:
    """Write what the run has recorded until now to the target `to`. `out`: the file or folder that
    was asked for; `several`: whether more runs go there, so that it is a folder. Raises UserError;
    then what was there before stays."""
    state, written = run.state(), notes.read(run.path)
    try:
        config = to_dict(for_people(from_dict(attempts.read_spec(run))))
    except (UserError, OSError):
        config = {}  # what can't be read of its spec is left out
    about = About(run.id, written.name or state.name, state.created, config, written.tags,
                  written.note)
    source: Source | None = None
    last: Row | None = None
    count = 0

    def rows() -> Iterator[Row]:
        nonlocal source, last, count
        source, last, count = Source(run.path), None, 0
        for last in source.rows():
            count += 1
            yield last
        if not run.path.is_dir():
            raise Failed(f"run {run.id} was removed meanwhile; {run.path} is not there any more")

    try:
        if to == "csv":
            path = Path(f"{run.id}.csv") if out is None else out
            if out is not None and (several or out.is_dir()):
                path = out / f"{run.id}.csv"
            where = targets.csv(path, about, rows)
        elif to == "tensorboard":
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in about.name)
            folder = (out or Path("tensorboard")) / f"{run.id}-{name.lstrip('.')[:80] or 'run'}"
            where = targets.tensorboard(folder, about, rows)
        else:
            where = targets.wandb(out or Path(), project or targets.PROJECT, about, rows)
    except OSError as err:
        at = f"{err.filename}: " if err.filename else ""
        raise Failed(f"run {run.id} can't be exported: {at}{reason(err)}") from None
    return Exported(run.id, where, count, last.step if last is not None else None, state.state,
                    state.live, 0 if source is None else source.skipped)
