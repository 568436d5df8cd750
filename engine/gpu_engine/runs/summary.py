"""The few facts about a run that a list of a thousand needs, read quickly: no plan is checked and
no event is read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from gpu_engine.common.files import json_inside
from gpu_engine.runs import notes, sweep
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.query import Asked
from gpu_engine.runs.sweep import Member


@dataclass(frozen=True, slots=True)
class Digest:
    """What is known about a run without its events."""

    run: Run
    state: State
    notes: Notes
    task: str = ""
    """The task's class as module:Class, or the command; "" if the plan can't be read."""
    mode: str = ""
    """"" if the plan can't be read."""
    replicas: int = 1
    world_size: int | None = None
    steps: int | None = None
    """How many steps of a task were asked for, and how many epochs; None: by the other, or by the
    command."""
    epochs: int | None = None
    best: str | None = None
    """train.best, of a task."""
    debugged: bool = False
    """Whether a rank of it has a terminal: its reason then says how to get there."""
    sweep: Member | None = None
    """Its place in a sweep; None: it is in none."""

    @property
    def name(self) -> str:
        """The name that a person gave it, else the one that it was started with."""
        return self.notes.name or self.state.name

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        return Asked.of(id=self.run.id, name=self.name, preset=self.state.name, task=self.task,
                        mode=self.mode, state=self.state.state, tags=self.notes.tags,
                        note=self.notes.note)


def read(run: Run, before: Digest | None = None, state: State | None = None) -> Digest:
    """The digest of a run. What can't be read of its plan and its notes is left out. `before`: its
    digest a moment ago, in the same attempt, whose plan still holds. `state`: its state, if that is
    known."""
    state = state or run.state()
    if before is not None:
        return replace(before, state=state, notes=notes.read(run.path))
    plan = _table(json_inside(run.path, "plan.json"))
    spec = _table(plan.get("spec"))
    task, train = _table(spec.get("task")), _table(spec.get("train"))
    command, use = task.get("command"), task.get("use")
    ours = isinstance(use, str)
    what = shlex.join(map(str, command)) if isinstance(command, list) else use if ours else ""
    mode, best = plan.get("mode"), train.get("best")
    replicas = _whole(plan.get("replicas")) or _whole(_table(plan.get("batch")).get("replicas"))
    return Digest(run, state, notes.read(run.path), what,
                  mode if isinstance(mode, str) else "", replicas or 1,
                  _whole(plan.get("world_size")), _whole(train.get("steps")) if ours else None,
                  _whole(train.get("epochs")) if ours else None,
                  best if ours and isinstance(best, str) else None,
                  _whole(_table(spec.get("run")).get("debug_rank")) is not None,
                  sweep.read(run.path))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None
