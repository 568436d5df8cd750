"""Exports what a run has recorded to a target: a CSV file, an events file of TensorBoard, a run of
Weights & Biases. Each target is a function that writes all rows of a run and returns where they
are, for people; if it fails, what was there before stays."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, require_replaceable, telling
from gpu_engine.common.files import reason
from gpu_engine.export.rows import MOST_NAMES, Row, Source
from gpu_engine.interpreters import choose
from gpu_engine.runs import attempts, notes
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import for_people, to_dict
from gpu_engine.sweep import study
from gpu_engine.sweep.group import Group

PROJECT = "gpu-panel"
"""The project of W&B, if no other is named."""
_LONGEST = 200
"""Characters of a name."""


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
            where = csv(path, about, rows)
        elif to == "tensorboard":
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in about.name)
            folder = (out or Path("tensorboard")) / f"{run.id}-{name.lstrip('.')[:80] or 'run'}"
            where = tensorboard(folder, about, rows)
        else:
            where = wandb(out or Path(), project or PROJECT, about, rows)
    except OSError as err:
        at = f"{err.filename}: " if err.filename else ""
        raise Failed(f"run {run.id} can't be exported: {at}{reason(err)}") from None
    return Exported(run.id, where, count, last.step if last is not None else None, state.state,
                    state.live, 0 if source is None else source.skipped)


def optuna(found: Group, out: Path | None) -> Exported:
    """Write the sweep as a study of Optuna's into the SQLite file that was asked for. Raises
    UserError."""
    path = out or Path()
    path = path / f"{found.id}.db" if path.is_dir() else path
    with telling(f"{path}: can't be written"):
        require_replaceable(path, b"SQLite format 3")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".exporting-") as beside:
            made = Path(beside).absolute() / "study.db"
            many = study.write(found, f"sqlite:///{made}")
            made.replace(path)
    live = any(run.state().live for run, _ in found.members)
    return Exported(found.id, str(path), many, None, "running" if live else "completed", live, 0)


# --- the targets ----------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class About:
    """What a target is told of the run beside its rows."""

    id: str
    name: str
    created: float
    """Unix seconds."""
    config: Mapping[str, Any]
    """The spec as a nested dict, without what is not set."""
    tags: tuple[str, ...] = ()
    note: str = ""


class Names:
    """Names as a target takes them. Two different names stay different, and a name always
    becomes the same one if the names before it are the same."""

    def __init__(self, refused: str = "") -> None:
        """`refused`: a regular expression for the characters that become "_"."""
        self._refused = re.compile(refused) if refused else None
        self._made: dict[str, str | None] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str | None:
        """The name to use for `name`; None if its values are left out."""
        if name not in self._made:
            if len(self._made) >= 2 * MOST_NAMES:
                return None
            self._made[name] = self._make(name)
        return self._made[name]

    def values(self, row: Row) -> dict[str, float]:
        """A row's values under the names to use."""
        named = ((self(name), value) for name, value in row.values.items())
        return {name: value for name, value in named if name is not None}

    def _make(self, name: str) -> str | None:
        if len(self._taken) >= MOST_NAMES:
            return None
        wanted = clean(name, _LONGEST) or "_"
        if self._refused is not None:
            wanted = self._refused.sub("_", wanted)
        made, number = wanted, 1
        while made in self._taken:
            number += 1
            made = f"{wanted}_{number}"
        self._taken.add(made)
        return made


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` when the block ends, and is gone if that fails. Raises UserError,
    OSError."""
    with telling(f"{path}: can't be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise UserError(f"{path} is a folder; name a file in it")
        # TensorBoard reads whatever has "tfevents" in its name.
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".exporting-")
    beside = Path(name)
    try:
        with os.fdopen(fd, "w+b", buffering=1 << 16) as file:
            yield file
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(file.fileno(), 0o666 & ~umask)
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


FIRST = ("step", "time", "attempt")
"""The columns that every row has. Time is in Unix seconds."""


def csv(path: Path, about: About, rows: Callable[[], Iterable[Row]]) -> str:
    """Write the file `path`. Which columns there are is known when all rows are, so they are read
    twice."""
    with telling(f"{path}: can't be read"):
        require_replaceable(path, ",".join(FIRST).encode())
    names, columns = Names(), dict[str, str]()
    for row in rows():
        for name in row.values:
            if name not in columns and (column := names(name)) is not None:
                columns[name] = column
    with replacing(path) as file:
        file.write((",".join([*FIRST, *map(quoted, columns.values())]) + "\n").encode())
        for row in rows():
            cells = (cell(row.values[name]) if name in row.values else "" for name in columns)
            file.write(f"{','.join([str(row.step), f'{row.t:.3f}', str(row.attempt), *cells])}\n"
                       .encode())
    return str(path)


def cell(value: float) -> str:
    """A value as Python, pandas and spreadsheets read it back exactly: "0.25", "1240", "nan",
    "-inf"."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


_WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The same four characters as wide as a Chinese one: some spreadsheets take them for the narrow."""


def quoted(name: str) -> str:
    """A name as a cell, which no spreadsheet takes for a formula: an apostrophe stands before its
    first character if that would begin one, as OWASP's "CSV Injection" advises."""
    if name.startswith(("=", "+", "-", "@", "\t", "\r", *_WIDE)):
        name = "'" + name
    if any(c in name for c in ',"\n\r'):
        return '"' + name.replace('"', '""') + '"'
    return name


def tensorboard(folder: Path, about: About, rows: Callable[[], Iterable[Row]]) -> str:
    """Write one events file into `folder`, which is a run's folder below a logdir. Raises UserError
    if TensorBoard is not installed."""
    proto = "tensorboard.compat.proto."
    events, summaries, records = load("tensorboard", f"{proto}event_pb2", f"{proto}summary_pb2",
                                      "tensorboard.summary.writer.record_writer")
    kinds = summaries.Summary
    # Characters that tags don't have, as torch's SummaryWriter replaces them too.
    names = Names(r"[^-/\w.\[\]:]")
    # The name is the same each time, so that a second export replaces the first.
    name = f"events.out.tfevents.{int(about.created)}.gpu-panel.{about.id}"
    with replacing(folder / name) as file:
        writer = records.RecordWriter(file)
        writer.write(events.Event(wall_time=about.created,
                                  file_version="brain.Event:2").SerializeToString())
        for row in rows():
            values = [kinds.Value(tag=tag, simple_value=value)
                      for tag, value in names.values(row).items()]
            writer.write(events.Event(wall_time=row.t, step=row.step,
                                      summary=kinds(value=values)).SerializeToString())
    return str(folder)


def wandb(folder: Path, project: str, about: About, rows: Callable[[], Iterable[Row]]) -> str:
    """Write a run of W&B, offline, into `folder`/wandb. Its id follows from the run's, so that a
    second export replaces the first. Raises UserError if W&B's library is not installed, or if the
    run was sent already."""
    # Neither errors nor statistics of an export go to anybody.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    (library,) = load("wandb", "wandb")
    # A run's own id has four letters: no other run of any person has this one.
    id = f"{about.id}-{int(about.created):x}"
    old = sorted((folder / "wandb").glob(f"*run-????????_??????-{id}"))
    if sent := [path for path in old if list(path.glob("*.synced"))]:
        raise UserError(f"{sent[0]} was sent to W&B already, as run {id}; delete that folder to "
                        "export it once more")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run = library.init(
            project=project, id=id, name=f"{about.name} {about.id}", dir=str(folder),
            mode="offline", config=dict(about.config), tags=list(about.tags),
            notes=about.note or None, reinit="create_new", settings=library.Settings(
                console="off", silent=True, disable_git=True, disable_code=True,
                x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True))
    except (library.Error, OSError) as err:
        raise UserError(f"W&B: {err}") from None
    path, names = Path(run.dir).parent, Names(r"[^-/\w.\[\]: ]")
    try:
        # W&B's own step only counts rows; curves are drawn over the value `step`.
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        for row in rows():
            run.log(names.values(row) | {"step": row.step, "attempt": row.attempt,
                                         "_timestamp": row.t})
        run.finish()
    except BaseException:
        with contextlib.suppress(Exception):
            run.finish(exit_code=1)
        shutil.rmtree(path, ignore_errors=True)
        raise
    for earlier in old:
        if earlier != path:
            shutil.rmtree(earlier, ignore_errors=True)
    return f"{path}; wandb sync {path} sends it"


def load(extra: str, *modules: str) -> list[Any]:
    """These modules, which come with the extra `extra` of gpu-panel, a library of the same name.
    Raises UserError that says how to install it if one is missing or can't be imported."""
    try:
        found = [import_module(name) for name in modules]
        # `wandb/`, which W&B makes, passes for a package where `python -m` is started.
        if any(module.__file__ is None for module in found):
            raise ModuleNotFoundError(name=extra)
        return found
    except ImportError as err:
        why = f"{extra} is not installed"
        if err.name is None or err.name.partition(".")[0] != extra:
            why = f"{extra} can't be imported ({err})"
        raise UserError(f"{why} for {sys.executable}, which runs gpu-engine;\n"
                        f"{choose.extra(extra)} installs it") from None
