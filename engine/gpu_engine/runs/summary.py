"""The few facts about a run that a list of a thousand needs, read quickly: no plan is checked and
no event is read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gpu_engine.common.clean import shown, shown_params, shown_words
from gpu_engine.common.files import json_inside
from gpu_engine.common.values import show
from gpu_engine.runs import notes, sweep
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.query import Asked
from gpu_engine.runs.sweep import Member

_MOST_KEYS, _LONGEST_KEY, _LONGEST = 300, 100, 200
"""Bounds of what is kept of a spec: its keys, and the characters of a key and of a value."""


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
    """run.best, or else train.best of a task."""
    sweep: Member | None = None
    """Its place in a sweep; None: it is in none."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The keys of its spec and their values as text, long ones cut: {"train.lr": "0.1"}."""

    @property
    def name(self) -> str:
        """The name that a person gave it, else the one that it was started with."""
        return self.notes.name or self.state.name

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        return Asked({
            "id": (self.run.id,), "name": (self.name,), "preset": (self.state.name,),
            "task": (self.task,), "mode": (self.mode,), "state": (self.state.state,),
            "tag": self.notes.tags, "note": (self.notes.note,),
            "verdict": (self.notes.verdict or "",)}, self.settings)


def read(run: Run, before: Digest | None = None) -> Digest:
    """The digest of a run. What can't be read of its plan and its notes is left out. `before`: its
    digest a moment ago, in the same attempt, whose plan still holds."""
    state = run.state()
    if before is not None:
        return replace(before, state=state, notes=notes.read(run.path))
    plan = _table(json_inside(run.path, "plan.json"))
    spec = _table(plan.get("spec"))
    task, train = _table(spec.get("task")), _table(spec.get("train"))
    command, use = task.get("command"), task.get("use")
    ours = isinstance(use, str)
    what = shlex.join(shown_words([str(word) for word in command])) \
        if isinstance(command, list) else use if ours else ""
    mode, best = plan.get("mode"), _table(spec.get("run")).get("best") or (
        train.get("best") if ours else None)
    replicas = _whole(plan.get("replicas")) or _whole(_table(plan.get("batch")).get("replicas"))
    return Digest(run, state, notes.read(run.path), what,
                  mode if isinstance(mode, str) else "", replicas or 1,
                  _whole(plan.get("world_size")), _whole(train.get("steps")) if ours else None,
                  _whole(train.get("epochs")) if ours else None,
                  best if isinstance(best, str) else None,
                  sweep.read(run.path), dict(islice(_flat(spec), _MOST_KEYS)))


def _flat(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a spec and their values. A thousand runs have mostly the same: each text is kept
    once."""
    for section, keys in spec.items():
        for key, value in _table(keys).items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            if key == "command" and isinstance(value, list):
                inner = [("", shown_words([str(word) for word in value]))]
            elif key == "params":
                inner = shown_params(_table(value)).items()
            for name, one in inner:
                dotted = f"{section}.{key}" + (f".{name}" if name else "")
                if len(dotted) <= _LONGEST_KEY and one is not None:
                    yield sys.intern(dotted), sys.intern(
                        shown(name, _text(one)) if key == "env" else _text(one))


def _text(value: object) -> str:
    """A value of a spec, as `--set` takes it where it is a plain one."""
    if isinstance(value, list):
        return ",".join("…" if isinstance(one, list) else _text(one)
                        for one in value[:_LONGEST])[:_LONGEST]
    return "…" if isinstance(value, dict) else show(value)[:_LONGEST]


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None
