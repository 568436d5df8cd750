"""docs/performance.md, from results.json alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from . import compare, reasons, results
from .measures import BESIDE, GROWTH, MEASURES, Measure
from .results import Figure, Group
from .spread import spread
from .surroundings import ROOT

PAGE = ROOT / "docs" / "performance.md"


def write() -> None:
    """Write the page."""
    PAGE.write_text(rendered(results.read()))


def rendered(groups: Mapping[str, Group]) -> str:
    """The page."""
    lost = compare.losses(compare.pairs(groups))
    parts = [
        reasons.INTRODUCTION,
        "## Where gpu-panel loses\n\nThe other was ahead in every round. The last column says how "
        "many times the other's figure ours is.\n",
        _table(lost),
        _why(lost),
        "## Beside others\n",
        *(_whole(name, groups[name]) for name in BESIDE if name in groups),
        "## How its own cost grows\n",
        *(_growth(name, groups[name]) for name in GROWTH if name in groups),
        "## What was not measured\n",
        _missing(groups),
        "## Machine, versions and dates\n",
        _surroundings(groups),
    ]
    text = "\n".join(part for part in parts if part)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _table(pairs: Iterable[compare.Pair]) -> str:
    lines = [f"| {MEASURES[p.group, p.measure].title}, {p.case} | {p.ours} "
             f"{MEASURES[p.group, p.measure].text(p.our.median)} | {p.peer} "
             f"{MEASURES[p.group, p.measure].text(p.their.median)} | {p.ratio.median:.2f} |"
             for p in pairs]
    if not lines:
        return "None.\n"
    return "\n".join(["| | ours, median | the other, median | ours ÷ the other |",
                      "|---|---|---|---|", *lines]) + "\n"


def _why(lost: Iterable[compare.Pair]) -> str:
    """A sentence for each kind of loss that there is."""
    kinds = dict.fromkeys((p.group.rstrip("12"), p.measure) for p in lost)
    return "\n".join(reasons.LOSSES[kind] for kind in kinds if kind in reasons.LOSSES) + "\n"


def _whole(name: str, group: Group) -> str:
    """A table for each case: a row for each program, a column for each measure."""
    out = [f"### {reasons.TITLES[name]}\n", reasons.HOW[name]]
    cases: dict[str, dict[str, dict[str, Figure]]] = {}
    for f in group.figures:
        cases.setdefault(f.case, {}).setdefault(f.program, {})[f.measure] = f
    for case, programs in cases.items():
        measures = list(dict.fromkeys(m for figures in programs.values() for m in figures))
        titles = " | ".join(MEASURES[name, m].title for m in measures)
        out += [f"\n| {case} | {titles} |", "|---" * (len(measures) + 1) + "|"]
        out += [f"| {program} | " + " | ".join(
                    _cell(MEASURES[name, m], figures.get(m)) for m in measures) + " |"
                for program, figures in programs.items()]
    return "\n".join(out) + "\n"


def _cell(kind: Measure, figure: Figure | None) -> str:
    """The median of the rounds, and the least and the greatest."""
    if figure is None:
        return ""
    got = spread(figure.values)
    low, high = (kind.text(value).split()[0] for value in (got.low, got.high))
    return f"{kind.text(got.median)} ({low}–{high})"


def _growth(name: str, group: Group) -> str:
    """A row for each size, a column for each measure."""
    columns = list(dict.fromkeys(f.measure for f in group.figures))
    out = [f"### {reasons.TITLES[name]}\n", reasons.HOW[name], "",
           f"| {group.figures[0].case} | "
           + " | ".join(MEASURES[name, m].title for m in columns) + " |",
           "|---" * (len(columns) + 1) + "|"]
    for size in dict.fromkeys(f.program for f in group.figures):
        cells = []
        for measure in columns:
            cells.append(_cell(MEASURES[name, measure], next(
                f for f in group.figures if (f.program, f.measure) == (size, measure))))
        out.append(f"| {size} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _missing(groups: Mapping[str, Group]) -> str:
    found = [f"- {name} ({reasons.TITLES[group]}): {why}." for group in sorted(groups)
             for name, why in groups[group].missing.items()]
    for name in (*BESIDE, *GROWTH):
        if name not in groups:
            found.append(f"- {reasons.TITLES[name]}: no figures are kept.")
        elif (rounds := min(len(f.values) for f in groups[name].figures)) < compare.ENOUGH:
            found.append(f"- {reasons.TITLES[name]}: only {rounds} of {compare.ENOUGH} rounds were "
                         "made: a first look.")
    return "\n".join([*found, *reasons.NEVER]) + "\n"


def _surroundings(groups: Mapping[str, Group]) -> str:
    """A row for each day, machine and commit."""
    rows = ["| measured | commit | machine | what (rounds, load) |", "|---|---|---|---|"]
    same: dict[str, list[str]] = {}
    for name in (*BESIDE, *GROWTH):
        if name in groups:
            g = groups[name]
            machine = g.machine
            row = (f"| {g.date[:10]} | `{g.commit}` | {machine['cores']} cores, {machine['cpu']}, "
                   f"{machine['memory']} |")
            same.setdefault(row, []).append(f"{name} ({len(g.figures[0].values)}, {g.load})")
    rows += [f"{row} {', '.join(names)} |" for row, names in same.items()]
    versions: dict[str, str] = {}
    for group in groups.values():
        versions |= group.versions
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(rows) + f"\n\n{said}.\n"
