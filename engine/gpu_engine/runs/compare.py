"""Runs side by side: how they ended, and in which settings and in what environment they differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from gpu_engine.common import table, units
from gpu_engine.common.clean import clean
from gpu_engine.events.view import RunView
from gpu_engine.plan import own_command
from gpu_engine.runs import attempts, environment, notes
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.state import State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import flat, for_people

_MOST_LOGGED = 30
"""Values of a run that are compared: a script may log thousands."""
WIDEST = 48
"""Characters of a value that tables show."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How far a run has got. None: not known."""

    state: str
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    """The mean of the ranks' last losses."""
    evaluation: dict[str, float] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    """The last values that were logged or printed."""
    seconds: float | None = None
    """The time that its attempts took."""
    samples_per_s: float | None = None
    """Of all ranks together, over its last steps."""
    gpu_peak: int | None = None
    """Bytes: the most that torch had allocated on one device."""
    host_memory: int | None = None
    """Bytes: the largest rank's."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is compared of one run."""

    id: str
    name: str
    figures: Figures
    settings: dict[str, str]
    """Dotted key → value, as `spec.write.flat` gives them."""
    environment: Environment


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the comparison: a value for each run, None where it has none."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """Whether not all values are the same."""
        return len(set(self.values)) > 1


def read(run: Run) -> tuple[RunFacts, RunView]:
    """The facts of a run, and all that its events say. Raises UserError if its spec can't be
    read."""
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    return with_figures(without_figures(run, follower.state), follower.state,
                        follower.view), follower.view


def without_figures(run: Run, state: State) -> RunFacts:
    """The facts of a run that do not follow from its events. Raises UserError if its spec can't be
    read."""
    name = clean(notes.read(run.path).name or state.name)
    spec = for_people(from_dict(attempts.read_spec(run)))
    # A person's own command takes no notice of the rest, such as a batch size that is a default.
    settings = {key: value for key, value in flat(spec).items()
                if own_command.is_told(spec.task.command, key)}
    return RunFacts(clean(run.id), name, Figures(state.state), settings,
                    environment.read(run.path))


def with_figures(facts: RunFacts, state: State, view: RunView) -> RunFacts:
    """`facts` with the figures that the events have given so far."""
    progress, ranks = view.progress(), list(view.ranks.values())
    evaluations = next((r.evaluations for r in ranks if r.evaluations), {})
    logged = next((own for r in ranks if (own := {
        name: value for name, value in islice(r.metrics.items(), _MOST_LOGGED)
        if name != "grad_norm" and not name.startswith("loss[")})), {})
    peaks = [p for r in ranks for p in r.gpu_peak if p is not None]
    hosts = [r.rss for r in ranks if r.rss is not None]
    return replace(facts, figures=Figures(
        state.state, progress.step, progress.total_steps, progress.loss, dict(evaluations), logged,
        state.took(time.time()), progress.samples_per_s, max(peaks, default=None),
        max(hosts, default=None)))


def figure_rows(runs: Sequence[RunFacts]) -> list[Row]:
    """How each ended, for people; without lines in which no run has a value."""
    names = list(dict.fromkeys(n for r in runs for n in r.figures.evaluation))
    found = [r.figures for r in runs]
    rows = [Row("state", tuple(f.state for f in found)),
            _row("steps", units.count, [f.step for f in found]),
            _row("loss", units.loss, [f.loss for f in found]),
            *(_row(f"eval {clean(n)}", units.loss, [f.evaluation.get(n) for f in found])
              for n in names),
            *(_row(clean(n), units.loss, [f.logged.get(n) for f in found])
              for n in dict.fromkeys(n for f in found for n in f.logged)),
            _row("time", units.clock, [f.seconds for f in found]),
            _row("samples per s", units.short, [f.samples_per_s for f in found]),
            _row("GPU memory", units.size, [f.gpu_peak for f in found]),
            _row("host memory", units.size, [f.host_memory for f in found])]
    return [row for row in rows if any(v is not None for v in row.values)]


def setting_rows(runs: Sequence[RunFacts]) -> list[Row]:
    """In which settings they differ, those whose settings could be read."""
    keys = dict.fromkeys(k for r in runs for k in r.settings)
    readable = [r for r in runs if r.settings]
    return [Row(k, tuple(r.settings.get(k) for r in runs)) for k in keys
            if len({r.settings.get(k) for r in readable}) > 1]


def environment_rows(runs: Sequence[RunFacts]) -> list[Row]:
    """In what else they differ; a commit and the name of code are cut to twelve characters."""
    told = [asdict(r.environment) for r in runs]
    rows = [_row(name, (lambda v: v[:12]) if key in ("commit", "code") else str,
                 [t[key] for t in told]) for key, name in _ENVIRONMENT.items()]
    return [row for row in rows if row.differs]


def heads(runs: Sequence[RunFacts]) -> list[str]:
    """What stands above each run's values: "3f2a digits"."""
    return [f"{facts.id} {facts.name}" for facts in runs]


def parts(runs: Sequence[RunFacts]) -> list[tuple[str, list[Row]]]:
    """(title, rows) of all that is compared: figures, settings, environment."""
    return [("", figure_rows(runs)), ("settings", setting_rows(runs)),
            ("environment", environment_rows(runs))]


def markdown(runs: Sequence[RunFacts]) -> list[str]:
    """The comparison as a table for a report or an issue, line by line."""
    return table.markdown(["", *heads(runs)], (
        [row.name, *map(cell, row.values)] for _, rows in parts(runs) for row in rows))


def cell(value: str | None) -> str:
    """A value for people, cut if it is long."""
    text = "–" if value is None else clean(value)
    return text if len(text) <= WIDEST else text[:WIDEST - 1] + "…"


_ENVIRONMENT = {"gpu_panel": "gpu-panel", "python": "python", "torch": "torch",
                "driver": "driver", "machine": "machine", "devices": "devices",
                "folder": "folder", "commit": "commit", "code": "code",
                "changed_files": "changed files"}


def _row(name: str, shown: Callable[[Any], str], values: Sequence[object]) -> Row:
    return Row(name, tuple(None if v is None else shown(v) for v in values))
