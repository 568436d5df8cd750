"""What a report contains, in the order in which it stands, for any format. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.common.errors import with_type
from gpu_engine.diagnose.steps import NAMES
from gpu_engine.report.story import Best, Story
from gpu_engine.report.svg import Chart, Line, letter
from gpu_engine.runs import compare

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
