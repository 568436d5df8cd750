"""What a list tells of a run, in one file that is read without its events: `digest.json` in the run
folder.

Its supervisor writes it at the end of the run. A run without one, which was killed or is older,
gets it from whoever looks first. It holds for the state and the events of which it was made: one of
an earlier attempt, or before more was fetched from a host, is not believed. Like every file of a
run folder it is data, whoever wrote it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_engine.common.clean import shown, shown_params, shown_words
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside, read_inside, size_of, write_inside
from gpu_engine.common.values import show
from gpu_engine.events.paths import events_path, ranks_with_files
from gpu_engine.events.reader import sample
from gpu_engine.events.schema import Eval, Event, Metric, Schedule, Start, Step, Training
from gpu_engine.events.track import EVAL, LOSS, Extent, Track
from gpu_engine.events.view import RunView
from gpu_engine.events.writer import json_safe
from gpu_engine.runs import job, notes, sweep
from gpu_engine.runs.folder import FINAL, Run, State
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.query import Asked
from gpu_engine.runs.sweep import Member
from gpu_engine.spec.schema import parse_best

FILE, _MOST = "digest.json", 1 << 18
"""The file, and its bytes: a run with more to tell, as thousands of names, is read each time."""
POINTS = 20
"""Means of the loss over the steps, for a sparkline."""
_MOST_KEYS, _LONGEST_KEY, _LONGEST = 300, 100, 200
"""Bounds of what is kept of a spec: its keys, and the characters of a key and of a value."""
_KINDS: tuple[type[Event], ...] = (Start, Schedule, Training, Step, Eval, Metric)
"""The events that are looked at."""
_PARTS, _PIECE, _END = 60, 1 << 14, 1 << 16
"""A rank's file that is larger than these pieces together, about a mebibyte, is read in parts; some
50 ms for a mebibyte."""
_MOST_RANKS = 16

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Time = Annotated[float, Meta(ge=0, le=1e11)]
_Seconds = Annotated[float, Meta(ge=-1e13, le=1e13)]


@dataclass(frozen=True, slots=True)
class By:
    """The value by which runs are compared."""

    name: str = LOSS
    """As it is recorded: "eval:accuracy" is an evaluation's."""
    largest: bool = False
    """Whether the greatest is the best."""

    @property
    def text(self) -> str:
        """As `--by` takes it."""
        return ("max:" if self.largest else "") + self.name

    def best(self, values: Mapping[str, Extent]) -> float | None:
        """The best one of a run; None if it has none, or is NaN or infinite by now: it is lost
        then, however good it has been."""
        extent = values.get(self.name)
        if extent is None or extent.last is None or not math.isfinite(extent.last):
            return None
        return extent.greatest if self.largest else extent.least


@cache
def _wanted(asked: str | None) -> tuple[str, bool] | None:
    try:
        return parse_best(asked)
    except UserError:  # of a folder that was changed by hand
        return None


def compared_by(asked: str | None, names: Container[str]) -> By:
    """By which value runs are compared that have recorded values of these `names`. `asked`:
    run.best, or else train.best, whose value is the evaluation's if there is such a one; None: by
    the loss of their steps."""
    wanted = _wanted(asked)
    name, largest = wanted or (LOSS, False)
    order = (EVAL + name, name) if wanted else (name, EVAL + name)
    return By(next((full for full in order if full in names), name), largest)


@dataclass(frozen=True, slots=True)
class Figures:
    """How a run did. Nothing is known of a run that has recorded nothing."""

    steps: _Count | None = None
    """The last step of its slowest rank."""
    total: _Count | None = None
    """How many the last attempt was to make."""
    values: dict[str, Extent] = field(default_factory=dict)
    """How far each value has gone, by its name."""
    samples_per_s: float | None = None
    """Examples a second of all ranks; None if they are too many to be read."""
    steps_per_s: float | None = None
    """Of the slowest rank, over its last steps."""
    means: Annotated[tuple[float, ...], Meta(max_length=POINTS)] = ()
    """Of the loss over as many parts of the steps; empty: none is known."""
    exact: bool = True
    """False: only parts of the first rank's events were read, as there are so many."""

    @property
    def loss(self) -> float | None:
        """Of the last step, which may not be finite; None: not known."""
        found = self.values.get(LOSS)
        return None if found is None else found.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What is known of a run: by its state, its plan and its events."""

    state: str
    preset: str
    """The name that it was started with."""
    created: _Time
    started: _Time | None
    ended: _Time | None
    seconds: _Seconds | None
    """What its attempts took, so far."""
    reason: str | None
    warnings: tuple[str, ...]
    spans: tuple[tuple[_Time, _Time | None], ...]
    """When its attempts began and ended."""
    devices: tuple[str, ...]
    """Their labels, with the host of those that are not here."""
    task: str
    """The task's class as module:Class, or the command; "" if the plan can't be read."""
    mode: str
    """"" if the plan can't be read."""
    replicas: _Count
    world_size: _Count | None
    steps: _Count | None
    """How many steps of a task were asked for, and how many epochs; None: by the other, or by the
    command."""
    epochs: _Count | None
    best: str | None
    """run.best, or else train.best of a task."""
    settings: dict[str, str]
    """The keys of its spec and their values as text, long ones cut: {"train.lr": "0.1"}."""
    figures: Figures | None = None
    """None: its events were not read."""


@dataclass(frozen=True, slots=True)
class _Kept:
    stamp: list[int]
    digest: Digest


decoded = msgspec.json.Decoder(_Kept, strict=False).decode  # else NaN could not be a word


@dataclass(frozen=True, slots=True)
class Summary:
    """A run with its digest, and what a person has written on it."""

    run: Run
    digest: Digest
    notes: Notes
    sweep: Member | None
    """Its place in a sweep; None: it is in none."""

    @property
    def name(self) -> str:
        """The name that a person gave it, else the one that it was started with."""
        return self.notes.name or self.digest.preset

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        digest = self.digest
        return Asked({
            "id": (self.run.id,), "name": (self.name,), "preset": (digest.preset,),
            "task": (digest.task,), "mode": (digest.mode,), "state": (digest.state,),
            "tag": self.notes.tags, "note": (self.notes.note,),
            "verdict": (self.notes.verdict or "",)}, digest.settings)


def summary(run: Run, digest: Digest | None = None) -> Summary:
    """What is known of a run without reading its events. `digest`: as far as it is read."""
    return Summary(run, digest or find(run) or of(run), notes.read(run.path), sweep.read(run.path))


def read(run: Run, *, keep: bool = True) -> Digest:
    """The digest of a run with its figures: from its file, or made of its events and, if the run
    has ended and its folder is ours, kept there. `keep`: False if nothing may be written."""
    found = find(run)
    return found if found is not None else make(run, keep=keep)


def figures_of(run: Run, *, keep: bool = True) -> Figures:
    """The figures in `read`."""
    return read(run, keep=keep).figures or Figures()


def make(run: Run, *, keep: bool = True) -> Digest:
    """The same without a look at the file."""
    before = stamp(run.path)
    digest = of(run)
    if digest.state == "queued" and not digest.spans:
        return replace(digest, figures=Figures())
    digest = replace(digest, figures=_at(run.path, (*before,), digest.steps, digest.epochs)
                     if before else figures(run.path, digest.steps, digest.epochs))
    if keep and before and digest.state in FINAL and not run.odd():  # such as another's folder
        text = json.dumps(json_safe(_Kept(before, digest)), separators=(",", ":"))
        if len(text) < _MOST:
            with contextlib.suppress(OSError):  # it is made again by who looks next
                write_inside(run.path, FILE, text, settled=False)
    return digest


def find(run: Run) -> Digest | None:
    """The digest in the run's file; None if there is none that holds now."""
    try:
        kept = decoded(read_inside(run.path, FILE, _MOST))
    except (OSError, ValueError, OverflowError, RecursionError):  # msgspec's are ValueErrors
        return None
    digest = kept.digest
    if digest.state not in FINAL or digest.figures is None or kept.stamp != stamp(run.path):
        return None
    if digest.state == "lost":  # which the lock says, and no file
        state = run.state()
        return None if state.live else replace(digest, state=state.state, reason=state.reason)
    return digest


def stamp(run: Path) -> list[int]:
    """Changes with what a digest is made of: the state, a job of Slurm, the ranks' events. Empty if
    there is no state."""
    folder, size = str(run), 0  # a string, as a list asks this of thousands
    try:
        state = os.lstat(f"{folder}/state.json")
        slurm = os.lstat(path).st_mtime_ns if os.path.lexists(path := f"{folder}/{job.FILE}") else 0
    except OSError:
        return []
    with contextlib.suppress(OSError), os.scandir(f"{folder}/ranks") as entries:
        for entry in entries:
            if entry.name.endswith(".jsonl"):
                size += entry.stat(follow_symlinks=False).st_size
    return [state.st_mtime_ns, state.st_size, slurm, size]


# --- of its state and its plan --------------------------------------------------------------------

def of(run: Run, state: State | None = None, before: Digest | None = None) -> Digest:
    """The digest of a run without figures. What can't be read of its plan is left out. `state`: its
    own, if that was read. `before`: its digest a moment ago, in the same attempt, whose plan still
    holds."""
    state = state or run.state()
    now: dict[str, Any] = {
        "state": state.state, "preset": state.name, "created": state.created,
        "started": state.started, "ended": state.ended, "seconds": state.took(time.time()),
        "reason": state.why(time.time()), "warnings": tuple(one.message for one in state.warnings),
        "spans": tuple((a.started, a.ended) for a in state.attempts)}
    if before is not None:
        return replace(before, **now)
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
    return Digest(
        **now, devices=tuple(dict.fromkeys(_devices(plan))), task=what,
        mode=mode if isinstance(mode, str) else "", replicas=replicas or 1,
        world_size=_whole(plan.get("world_size")),
        steps=_whole(train.get("steps")) if ours else None,
        epochs=_whole(train.get("epochs")) if ours else None,
        best=best if isinstance(best, str) else None,
        settings=dict(islice(_flat(spec), _MOST_KEYS)))


def _devices(plan: dict[str, Any]) -> Iterator[str]:
    for rank in map(_table, _list(plan.get("ranks"))):
        for device in map(_table, _list(rank.get("devices"))):
            if isinstance(label := device.get("label"), str):
                yield label + (f" on {rank['host']}" if rank.get("host") else "")


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


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


# --- of its events --------------------------------------------------------------------------------

def figures(run: Path, steps: int | None = None, epochs: int | None = None, *,
            step: float = math.inf, t: float = math.inf) -> Figures:
    """The figures of the run in this folder: up to this step, and as they were at `t`, Unix
    seconds. `steps` or `epochs`: how many were asked for."""
    view, track, exact = track_of(run, t)
    end = view.progress()
    rate = track.samples_per_s if exact else end.samples_per_s
    each = next((v.steps_per_epoch for v in view.ranks.values() if v.steps_per_epoch), None)
    asked = steps or (each and epochs and each * epochs)
    # The start of a long file is out of date if a resume has asked for more steps.
    return Figures(end.step, asked or end.total_steps, track.extents(step),
                   rate if len(ranks_with_files(run)) <= _MOST_RANKS else None, end.steps_per_s,
                   _evenly(track.curve(LOSS).items()), exact)


def track_of(run: Path, t: float = math.inf) -> tuple[RunView, Track, bool]:
    """The view and all values of the run in this folder, as they were at `t`; and whether all
    events were read, or only parts of the first rank's and the ends of others', as there are so
    many."""
    ranks = ranks_with_files(run)[:_MOST_RANKS]
    exact = all(size_of(events_path(run, rank)) <= _PARTS * _PIECE + _END for rank in ranks)
    view, track = RunView(), Track()
    view.add(ranks)
    for rank in ranks:
        whole = exact or rank == ranks[0]
        for event in sample(events_path(run, rank), *_KINDS, parts=_PARTS if whole else 1,
                            piece=_PIECE if whole else 2048, end=_END if whole else 8192):
            if event.t <= t:
                view.fold(rank, event)
                if whole:
                    track.fold(rank, event)
    return view, track, exact


def _evenly(curve: Iterable[tuple[int, float]], points: int = POINTS) -> tuple[float, ...]:
    """Means of a curve at evenly spaced steps; where a piece of the file was left out, the mean
    before it, and before the first the first: an event may be about many steps."""
    found = sorted(curve)
    if not found:
        return ()
    parts: list[list[float]] = [[] for _ in range(points)]
    for step, loss in found:
        parts[min(step * points // max(found[-1][0], 1), points - 1)].append(loss)
    out = [found[0][1]]
    for part in parts:
        out.append(sum(part) / len(part) if part else out[-1])
    return tuple(out[1:])


@lru_cache(maxsize=256)
def _at(run: Path, _stamp: tuple[int, ...], steps: int | None, epochs: int | None) -> Figures:
    """The figures as they are at this stamp: who shows a sweep asks for them twice a second."""
    return figures(run, steps, epochs)
