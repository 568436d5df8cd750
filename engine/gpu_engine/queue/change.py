"""Moving a waiting run to another place in the line."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.folder import Run, State, runs_folder
from gpu_engine.runs.waiting import Entry


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run in the line."""

    run: Run
    entry: Entry
    state: State


def line() -> list[Waiting]:
    """All waiting runs of this user, in their order. Raises UserError if the folders can't be
    read."""
    folder = runs_folder()  # raises if nobody can look there, also where no entry is read
    entries = waiting.line(paths.queue_folder()).items()
    found = [Waiting(run := Run(folder / name), entry, run.state()) for name, entry in entries]
    return [one for one in found if one.state.state == "queued"]


def prioritise(run: Run, priority: int) -> None:
    """Give a waiting run another priority. Raises UserError if it does not wait."""
    _write(run, replace(_entry(run), priority=priority))


def move(run: Run, to: str) -> None:
    """Move a waiting run: "first", "last". It gets the priority of its new place. Raises UserError
    if it does not wait."""
    entry, rest = _entry(run), [w for w in line() if w.run.id != run.id]
    if rest:
        edge = rest[0 if to == "first" else -1].entry
        with telling(f"run {run.id} can't be moved"):
            number = edge.number - 1 if to == "first" else \
                waiting.next_number(paths.queue_folder())
        _write(run, replace(entry, priority=edge.priority, number=number))


def _entry(run: Run) -> Entry:
    trust.require_started(run.path)
    entry, state = waiting.read(run.path), run.state().state
    if entry is None or state != "queued":
        raise UserError(f"run {run.id} does not wait: it is {state}")
    return entry


def _write(run: Run, entry: Entry) -> None:
    with telling(f"run {run.id} can't be moved"):
        waiting.write(run.path, entry)
        waiting.enter(run.path)
