"""Moving a waiting run to another place in the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.folder import Run, State, runs_folder
from gpu_engine.runs.waiting import Entry, place


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run in the line."""

    run: Run
    entry: Entry
    state: State


def line() -> list[Waiting]:
    """All waiting runs of this user, in their order. Raises UserError if the folders can't be
    read."""
    out, folder = [], runs_folder()  # raises if nobody can look there, also where no entry is read
    for name, entry in waiting.line(paths.queue_folder()).items():
        run = Run(folder / name)
        state = run.state()
        if state.state == "queued":
            out.append(Waiting(run, entry, state))
    return out


def prioritise(run: Run, priority: int) -> None:
    """Give a waiting run another priority. Raises UserError if it does not wait."""
    _write(run, replace(_entry(run), priority=priority))


def move(run: Run, to: str) -> None:
    """Move a waiting run: "first", "last", "up", "down", or the id of the waiting run that it is to
    stand before. It gets the priority of its new place. Raises UserError if it does not wait, or
    that run does not."""
    entry = _entry(run)
    others = {name: e for name, e in waiting.line(paths.queue_folder()).items() if name != run.id}
    at = _position(run, entry, to, others)
    if not others:
        return
    entries = list(others.values())
    before = entries[at - 1] if at > 0 else None
    behind = entries[at] if at < len(entries) else None
    moved = replace(entry, **_between(before, behind))
    if moved.number in {e.number for e in entries if e.priority == moved.priority}:
        # After some fifty moves between the same two there is no number left between theirs.
        for number, (name, other) in enumerate(others.items()):
            _write(Run(runs_folder() / name), replace(other, number=1000.0 * number))
        moved = replace(moved, number=1000.0 * at - 500.0)
    _write(run, moved)


def _position(run: Run, entry: Entry, to: str, others: Mapping[str, Entry]) -> int:
    """How many of the others are to stand before the run."""
    if to in ("first", "last"):
        return 0 if to == "first" else len(others)
    if to in ("up", "down"):
        own = place(run.id, entry)
        now = sum(place(name, other) < own for name, other in others.items())
        return max(0, now - 1) if to == "up" else min(len(others), now + 1)
    if to in others:
        return list(others).index(to)
    raise UserError(f"run {to} does not wait; gpu-engine queue lists the runs that do")


def _between(before: Entry | None, behind: Entry | None) -> dict[str, float]:
    """Priority and number that sort between these two."""
    if before is None and behind is not None:
        return {"priority": behind.priority, "number": behind.number - 1}
    if before is not None and (behind is None or behind.priority != before.priority):
        return {"priority": before.priority, "number": before.number + 1}
    assert before is not None
    assert behind is not None
    return {"priority": before.priority, "number": (before.number + behind.number) / 2}


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
