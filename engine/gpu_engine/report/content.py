"""What a report contains, in the order in which it stands; and what is read of a run for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_engine.common import units
from gpu_engine.common.errors import with_type
from gpu_engine.common.series import Series
from gpu_engine.diagnose import device_times, steps, verdicts
from gpu_engine.diagnose.steps import Parts
from gpu_engine.export.rows import Row, Source
from gpu_engine.report.svg import Chart, Line, letter
from gpu_engine.runs import compare, notes
from gpu_engine.runs.compare import RunFacts
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import flat

_CHARTS = (("train/loss", "loss", ""), ("memory/gpu_peak", "GPU memory, peak", "bytes"),
           ("memory/host", "host memory of the largest rank", "bytes"),
           ("train/samples_per_s", "samples per second, all ranks", ""),
           ("train/lr", "learning rate", ""))
_MOST_NAMES = 12
"""Charts of evaluations, and of what a script logs or prints."""
CURVES = "Curves"
"""The title of their section."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with more than its text."""

    text: str
    style: str = ""
    """"" for what is no news; else "dim", "good", "warn", "bad", "accent"."""
    share: float | None = None
    """0 to 1, for a bar before the text."""
    curve: tuple[float, ...] = ()
    """Values to draw behind the text."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row says what the row is."""

    head: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
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
    sections += [_evaluations(story.curves), *_charts([story]), _time(story), _asked(story),
                 _where(story), _attempts(story)]
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
    names = dict.fromkeys(n for story in stories for n in story.curves)
    wanted = [*_CHARTS[:1], *(
        (name, f"{of}{name.partition('/')[2]}", "") for kind, of in (
            ("eval/", "evaluation: "), ("log/", "logged or printed: "))
        for name in [n for n in names if n.startswith(kind)][:_MOST_NAMES]), *_CHARTS[1:]]
    charts = []
    for name, title, unit in wanted:
        lines = [Line(story.title, story.curves[name]) if name in story.curves
                 else None for story in stories]
        there = [line for line in lines if line is not None]
        if not there:
            continue
        chart = Chart(title, [line or Line("", type(there[0].series)()) for line in lines], unit)
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


def _evaluations(curves: dict[str, Series]) -> Section:
    rows = []
    for name, series in curves.items():
        known = [i for i in range(len(series)) if series.count[i]]
        if name.startswith("eval/") and known:
            rows.append((name.removeprefix("eval/"), units.loss(min(series.lo[i] for i in known)),
                         units.loss(max(series.hi[i] for i in known))))
    return Section("Evaluations", (Table(("evaluation", "least", "greatest"), tuple(rows)),)
                   if rows else ())


def _time(story: Story) -> Section:
    """Where the steps' time went, a line for each rank."""
    return Section("Where the time of a step went", tuple(Text((line,)) for line in (
        *story.verdicts, *(f"rank {p.rank}: {steps.line(p)}" for p in story.parts))))


def _asked(story: Story) -> Section:
    defaults, settings = flat(RunSpec()), story.facts.settings
    rows = tuple((key, settings[key], defaults.get(key, "–"))
                 for key in settings if key != "name" and settings[key] != defaults.get(key))
    parts = [Table(("key", "value", "default"), rows)] if rows else []
    lines = [Text(story.lines, exact=True)] if story.lines else []
    return Section("What was asked", (*parts, *lines))


def _where(story: Story) -> Section:
    told = story.facts.environment
    changed = "" if not told.changed_files else \
        f", {units.counted(told.changed_files, 'file')} changed"
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
class Story:
    """A run for a report."""

    facts: RunFacts
    state: State
    notes: notes.Notes
    lines: tuple[str, ...] = ()
    curves: dict[str, Series] = field(default_factory=dict)
    """Name of a value → its curve over the steps."""
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
    story = Story(told, state, notes.read(run.path), plan.lines if plan is not None else (),
                  at=time.time())
    ranks = list(view.ranks.values())
    story.verdicts = [f"{v.code}: {v.text}" for v in verdicts.of(
        ranks, device_times.read(run.path, state.began))]
    story.parts = [parts for rank in ranks if (parts := steps.of_run(rank)) is not None]
    source = Source(run.path)
    for row in source.rows():
        _add(story, row)
    story.begins = source.begins
    return story


def _add(story: Story, row: Row) -> None:
    for name, value in row.values.items():
        if name in ("train/loss_min", "train/loss_max"):
            continue
        if name not in story.curves:
            if len(story.curves) >= _MOST:
                continue
            story.curves[name] = Series(_BUCKETS)
        around = (row.values.get("train/loss_min"), row.values.get("train/loss_max")) \
            if name == "train/loss" else ()
        story.curves[name].add(row.step, value, *around)
