"""What a report says of a run, read from its folder."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from math import isfinite

from gpu_engine.common.errors import UserError
from gpu_engine.common.series import Series
from gpu_engine.diagnose import device_times, steps, verdicts
from gpu_engine.diagnose.steps import Parts
from gpu_engine.export.row import Row
from gpu_engine.export.source import Source
from gpu_engine.runs import compare, notes
from gpu_engine.runs.compare import RunFacts
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec import presets
from gpu_engine.spec.schema import RunSpec, parse_best
from gpu_engine.spec.write import flat, for_people

_BUCKETS = 512
"""Of a curve: more than it has pixels."""
_MOST = 200
"""Curves of a run."""


@dataclass(slots=True)
class Best:
    """The best and the last value of one evaluation."""

    name: str
    last: float
    last_step: int
    least: tuple[float, int]
    """(value, step), as is greatest."""
    greatest: tuple[float, int]
    larger_is_better: bool | None = None
    """None: nobody has said."""


@dataclass(slots=True)
class Story:
    """A run for a report."""

    facts: RunFacts
    state: State
    notes: notes.Notes
    base: str
    """What its settings are compared with: "preset digits" or "the defaults"."""
    changed: list[tuple[str, str | None, str | None]]
    """(key, value in `base`, value here) of the settings that differ."""
    lines: tuple[str, ...] = ()
    curves: dict[str, Series] = field(default_factory=dict)
    """Name of a value → its curve over the steps."""
    evaluations: dict[str, Best] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    """Attempt after the first → its first step."""
    verdicts: list[str] = field(default_factory=list)
    """Why it is slow, where that is clear."""
    parts: list[Parts] = field(default_factory=list)
    at: float = 0.0
    """When it was read, Unix seconds."""

    @property
    def title(self) -> str:
        """"digits 3f2a"."""
        return f"{self.facts.name} {self.facts.id}"


def read(run: Run) -> Story:
    """Read all of a run's events. Raises UserError if its spec can't be read."""
    told, view = compare.read(run)
    state = run.state()
    plan = run.plan()
    base, changed = _changed(told.settings, state.name)
    story = Story(told, state, notes.read(run.path), base, changed,
                  plan.lines if plan is not None else (), at=time.time())
    ranks = list(view.ranks.values())
    story.verdicts = [f"{v.code}: {v.text}" for v in verdicts.of(
        ranks, device_times.DeviceFiles(run.path, state.began).read())]
    story.parts = [parts for rank in ranks if (parts := steps.of_run(rank)) is not None]
    source = Source(run.path)
    for row in source.final_rows():
        _add(story, row)
    story.begins = source.begins
    best = parse_best(told.settings.get("train.best"))
    if best is not None and (found := story.evaluations.get(f"eval/{best[0]}")) is not None:
        story.evaluations[found.name] = replace(found, larger_is_better=best[1])
    return story


def _changed(settings: dict[str, str], name: str
             ) -> tuple[str, list[tuple[str, str | None, str | None]]]:
    base, before = "the defaults", flat(RunSpec())
    if name in presets.names():  # never the path of a file, which the run's folder would choose
        with contextlib.suppress(UserError, OSError):
            base, before = f"preset {name}", flat(for_people(presets.load(name).spec))
    keys = [key for key in dict.fromkeys((*settings, *before)) if key != "name"]
    return base, [(key, before.get(key), settings.get(key)) for key in keys
                  if before.get(key) != settings.get(key)]


def _add(story: Story, row: Row) -> None:
    for name, value in row.values.items():
        if name.endswith(("loss_min", "loss_max")) and name.startswith("train/"):
            continue
        series = story.curves.get(name)
        if series is None:
            if len(story.curves) >= _MOST:
                continue
            series = story.curves[name] = Series(_BUCKETS)
        if name == "train/loss":
            series.add(row.step, value, row.values.get("train/loss_min"),
                       row.values.get("train/loss_max"))
        else:
            series.add(row.step, value)
        if name.startswith("eval/") and isfinite(value):
            _evaluated(story, name, value, row.step)


def _evaluated(story: Story, name: str, value: float, step: int) -> None:
    found = story.evaluations.get(name)
    if found is None:
        story.evaluations[name] = Best(name, value, step, (value, step), (value, step))
        return
    found.last, found.last_step = value, step
    if value < found.least[0]:
        found.least = (value, step)
    if value > found.greatest[0]:
        found.greatest = (value, step)
