"""What a report contains, in the order in which it stands, for any format; and what is read of a
run for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from gpu_engine.common import units
from gpu_engine.common.errors import UserError, with_type
from gpu_engine.common.series import Series
from gpu_engine.diagnose import device_times, steps, verdicts
from gpu_engine.diagnose.steps import NAMES, Parts
from gpu_engine.export.rows import Row, Source
from gpu_engine.report.svg import Chart, Line, letter
from gpu_engine.runs import compare, notes
from gpu_engine.runs.compare import RunFacts
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec import presets
from gpu_engine.spec.schema import RunSpec, parse_best
from gpu_engine.spec.write import flat, for_people

_CHARTS = (("train/loss", "loss", ""), ("memory/gpu_peak", "GPU memory, peak", "bytes"),
           ("memory/host", "host memory of the largest rank", "bytes"),
           ("train/samples_per_s", "samples per second, all ranks", ""),
           ("train/lr", "learning rate", ""))
_MOST_EVALUATIONS = 12
CURVES = "Curves"
"""The title of their section."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row says what the row is."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    links: tuple[str, ...] = ()
    """Where the first cell of each row leads; empty: nowhere. Of our making, never a run's."""


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs or, if `exact`, text with its line breaks."""

    lines: tuple[str, ...]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: tuple[Table | Text | Chart, ...]
    name: str = ""
    """What a link within the page calls it; empty: none leads here."""


def of_run(story: Story) -> list[Section]:
    parts: list[Table | Text] = []
    if story.notes.note or story.notes.tags:
        parts.append(Text((*story.notes.note.splitlines(),
                           *(["tags: " + ", ".join(story.notes.tags)] if story.notes.tags else [])
                           )))
    cause = story.state.cause
    if story.state.state in ("failed", "lost") and (cause is not None or story.state.reason):
        why = f"{cause.who or 'it'} failed first: {with_type(cause.type, cause.message)}" \
            if cause is not None else story.state.reason or ""
        parts.append(Text((why,)))
        if cause is not None and cause.traceback:
            parts.append(Text(tuple(cause.traceback.splitlines()), exact=True))
    parts += [Text((f"Warning: {one.message}", *one.cure)) for one in story.state.warnings]
    figures = compare.figure_rows([story.facts])
    parts.append(Table(("", "value"), tuple((r.name, r.values[0] or "–") for r in figures)))
    sections = [Section("How it ended" if not story.state.live else "How it stands", tuple(parts))]
    if story.evaluations:
        sections.append(Section("Evaluations", (_evaluations(story.evaluations.values()),)))
    sections += _charts([story])
    sections.append(_time(story))
    sections.append(_asked(story))
    sections.append(_where(story))
    sections.append(_attempts(story))
    return [s for s in sections if s.parts]


def of_several(stories: Sequence[Story]) -> list[Section]:
    told = [story.facts for story in stories]
    legend = Table(("line", "run", "state"), tuple(
        (letter(i), story.title, story.state.state) for i, story in enumerate(stories)))
    heads = ("", *(f"{letter(i)} {story.title}" for i, story in enumerate(stories)))
    sections = [Section("Runs", (legend,))]
    for title, rows in compare.parts(told):
        if rows:
            name = {"": "How they ended", "settings": "Settings that differ",
                    "environment": "What else differs"}[title]
            sections.append(Section(name, (Table(heads, tuple(
                (r.name, *(v if v is not None else "–" for v in r.values)) for r in rows)),)))
    return [*sections[:2], *_charts(stories), *sections[2:]]


def _charts(stories: Sequence[Story]) -> list[Section]:
    names = dict.fromkeys(n for story in stories for n in story.curves if n.startswith("eval/"))
    wanted = [*_CHARTS[:1], *((n, f"evaluation: {n.removeprefix('eval/')}", "")
                              for n in list(names)[:_MOST_EVALUATIONS]), *_CHARTS[1:]]
    charts = []
    for name, title, unit in wanted:
        lines = [Line(story.title, story.curves[name]) if name in story.curves
                 else None for story in stories]
        there = [line for line in lines if line is not None]
        if not there:
            continue
        begins = tuple(stories[0].begins.items()) if len(stories) == 1 else ()
        chart = Chart(title, [line or Line("", type(there[0].series)()) for line in lines], unit,
                      begins)
        if not chart.empty:
            charts.append(chart)
    said: list[Text] = []
    for i, story in enumerate(stories):
        loss = story.curves.get("train/loss")
        if loss is not None and loss.bad_at is not None:
            who = f"{letter(i)}: " if len(stories) > 1 else ""
            said.append(Text((f"{who}the loss was not a finite number from step "
                              f"{units.count(loss.bad_at)} on, or near it",)))
    if not charts:
        return [Section(CURVES, tuple(said) or (Text(("no step is recorded",)),))]
    how = Text(("Lines are means; the band around one goes from the least to the greatest value "
                "among ranks and neighbouring steps.",))
    return [Section(CURVES, (how, *said, *charts))]


def _evaluations(each: Iterable[Best]) -> Table:
    rows = []
    for one in each:
        least, greatest = _at(one.least), _at(one.greatest)
        best = {True: greatest, False: least, None: "–"}[one.larger_is_better]
        rows.append((one.name.removeprefix("eval/"), _at((one.last, one.last_step)), least,
                     greatest, best))
    return Table(("evaluation", "last", "least", "greatest", "best, by train.best"), tuple(rows))


def _at(found: tuple[float, int]) -> str:
    return f"{units.loss(found[0])} at step {units.count(found[1])}"


def _time(story: Story) -> Section:
    """Where the steps' time went, a column for each part that some rank knows."""
    names = [name for name in NAMES if any(p.parts[name] is not None for p in story.parts)]
    rows = tuple((f"rank {p.rank}", units.count(p.steps), units.brief(p.seconds / p.steps),
                  *("–" if (share := p.share(name)) is None else f"{share:.0%}" for name in names))
                 for p in story.parts)
    parts: list[Table | Text] = [Text((one,)) for one in story.verdicts]
    if rows:
        parts.append(Table(("", "steps", "a step", *map(NAMES.__getitem__, names)), rows))
    return Section("Where the time of a step went", tuple(parts))


def _asked(story: Story) -> Section:
    rows = tuple((key, before if before is not None else "–", after if after is not None else "–")
                 for key, before, after in story.changed)
    parts: list[Table | Text] = [
        Table(("key", f"in {story.base}", "in this run"), rows) if rows else
        Text((f"Every setting is that of {story.base}.",))]
    if story.lines:
        parts.append(Text(story.lines, exact=True))
    return Section(f"What was asked, against {story.base} as it is now"
                   if story.base.startswith("preset") else "What was asked", tuple(parts))


def _where(story: Story) -> Section:
    told = story.facts.environment
    changed = "" if not told.changed_files else f", {told.changed_files} files changed"
    rows = [("machine", told.machine), ("devices", told.devices), ("torch", told.torch),
            ("driver", told.driver), ("Python", told.python), ("gpu-panel", told.gpu_panel),
            ("folder", told.folder), ("commit", f"{told.commit}{changed}" if told.commit else None)]
    known = tuple((name, value) for name, value in rows if value)
    return Section("Where", (Table(("", "value"), known),) if known else ())


def _attempts(story: Story) -> Section:
    rows = []
    for a in story.state.attempts:
        took = units.clock(a.ended - a.started) if a.ended is not None else "–"
        begin = story.begins.get(a.number)
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(a.started))
        rows.append((str(a.number), began, took, a.outcome or "–",
                     "–" if begin is None else units.count(begin), ", ".join(a.changed) or "–",
                     a.reason or ""))
    return Section("Attempts", (Table(
        ("attempt", "began", "took", "outcome", "first step", "changed settings", "reason"),
        tuple(rows)),) if rows else ())


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
    for row in source.rows():
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
