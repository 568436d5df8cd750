"""docs/performance.md and its plots, from results.json alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import compare, plots, reasons, results
from .measures import BESIDE, GROWTH, MEASURES, Measure
from .results import Figure, Group
from .spread import ratios, spread
from .surroundings import ROOT

PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "performance"


def write() -> None:
    """Write the page and its plots; plots that are no longer there go."""
    found = rendered(results.read())
    for old in PICTURES.glob("*.svg"):
        old.unlink()
    for path, text in found.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def rendered(groups: Mapping[str, Group]) -> dict[Path, str]:
    """Path → contents, of the page and all its plots."""
    drawn = {PICTURES / f"{name}.svg": text for name, text in _plots(groups).items()}
    pairs = compare.pairs(groups)
    parts = [
        reasons.INTRODUCTION,
        "## Where gpu-panel loses\n\nThe other was ahead in every round. The last column says how "
        "many times the other's figure ours\nis: the median of the rounds, and in brackets the "
        "least and the greatest.\n",
        _table(compare.losses(pairs)),
        _why(compare.losses(pairs)),
        "## Where neither was ahead\n\nNow one and now the other was ahead, or the difference is "
        "smaller than what the machine's other\nload does.\n",
        _table(compare.undecided(pairs)),
        "## Where gpu-panel is ahead in every round\n\nOf five rounds or more: a lead in fewer is "
        "not counted, a loss is.\n",
        _ahead(compare.wins(pairs)),
        _pictures(drawn, "beside"),
        "## Everything that was measured beside others\n",
        *(_whole(name, groups[name]) for name in BESIDE if name in groups),
        "## How its own cost grows\n",
        *(_growth(name, groups[name]) for name in GROWTH if name in groups),
        _pictures(drawn, "growth"),
        "## What was not measured\n",
        _missing(groups),
        "## Machine, versions and dates\n",
        _surroundings(groups),
    ]
    text = "\n".join(part for part in parts if part)
    return {PAGE: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n", **drawn}


def _table(pairs: Iterable[compare.Pair]) -> str:
    lines = [f"| {MEASURES[p.group, p.measure].title}, {p.case} | {p.ours} "
             f"{MEASURES[p.group, p.measure].text(p.our.median)} | {p.peer} "
             f"{MEASURES[p.group, p.measure].text(p.their.median)} | {_times(p.ratio)} |"
             for p in pairs]
    if not lines:
        return "None.\n"
    return "\n".join(["| | ours, median | the other, median | ours ÷ the other |",
                      "|---|---|---|---|", *lines]) + "\n"


def _ahead(pairs: Iterable[compare.Pair]) -> str:
    """A row for each figure of ours, as there are many."""
    rows: dict[tuple[str, str, str, str], list[compare.Pair]] = {}
    for p in pairs:
        rows.setdefault((p.group, p.measure, p.case, p.ours), []).append(p)
    if not rows:
        return "Nowhere.\n"
    return "\n".join([
        "| | ours, median | ours ÷ the other |", "|---|---|---|",
        *(f"| {MEASURES[group, measure].title}, {case} | {ours} "
          f"{MEASURES[group, measure].text(those[0].our.median)} | "
          + "; ".join(f"{p.peer} {_times(p.ratio)}" for p in those) + " |"
          for (group, measure, case, ours), those in rows.items())]) + "\n"


def _times(ratio: compare.Spread) -> str:
    if ratio.rounds == 1:
        return f"{ratio.median:.2f} in one round"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _why(lost: Iterable[compare.Pair]) -> str:
    """A sentence for each kind of loss that there is."""
    kinds = dict.fromkeys((p.group.rstrip("12"), p.measure) for p in lost)
    return "\n".join(reasons.LOSSES[kind] for kind in kinds if kind in reasons.LOSSES) + "\n"


def _whole(name: str, group: Group) -> str:
    out = [f"### {reasons.TITLES[name]}\n", reasons.HOW[name]]
    for measure in dict.fromkeys(f.measure for f in group.figures):
        kind = MEASURES[name, measure]
        for case in dict.fromkeys(f.case for f in group.figures if f.measure == measure):
            figures = [f for f in group.figures if (f.measure, f.case) == (measure, case)]
            compared = name in ("train1", "train2", "observe", "log") and measure != "start"
            base = figures[0] if compared else None
            beside = f" | ÷ {base.program} |" if base else " |"
            out += [f"\n| {kind.title}, {case} | median | least to greatest of "
                    f"{len(figures[0].values)}" + beside,
                    "|---|---|---|" + ("---|" if base else "")]
            out += [_row(kind, f, base) for f in figures]
    return "\n".join(out) + "\n"


def _row(kind: Measure, figure: Figure, base: Figure | None) -> str:
    got = spread(figure.values)
    row = f"| {figure.program} | {kind.text(got.median)} | {kind.text(got.low)} to " \
          f"{kind.text(got.high)} |"
    return row + (f" {_times(ratios(figure.values, base.values))} |" if base else "")


def _growth(name: str, group: Group) -> str:
    """A row for each size, a column for each measure."""
    columns = list(dict.fromkeys(f.measure for f in group.figures))
    out = [f"### {reasons.TITLES[name]}\n", reasons.HOW[name], "",
           f"| {group.figures[0].case}; median of {len(group.figures[0].values)} "
           "(least to greatest) | "
           + " | ".join(MEASURES[name, m].title for m in columns) + " |",
           "|---" * (len(columns) + 1) + "|"]
    for size in dict.fromkeys(f.program for f in group.figures):
        cells = []
        for measure in columns:
            got = spread(next(f.values for f in group.figures
                              if (f.program, f.measure) == (size, measure)))
            kind = MEASURES[name, measure]
            cells.append(f"{kind.text(got.median)} ({kind.text(got.low)} to {kind.text(got.high)})")
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
    rows = ["| what | measured | gpu-panel's commit | rounds | machine | load |",
            "|---|---|---|---|---|---|"]
    for name in (*BESIDE, *GROWTH):
        if name not in groups:
            continue
        g = groups[name]
        rows.append(f"| {reasons.TITLES[name]} | {g.date} | `{g.commit}` | "
                    f"{len(g.figures[0].values)} | {g.machine['cores']} cores, {g.machine['cpu']}, "
                    f"{g.machine['memory']}, {g.machine['system']} | {g.load} |")
    versions: dict[str, str] = {}
    for group in groups.values():
        versions |= group.versions
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(rows) + f"\n\n{said}.\n"


# --- plots --------------------------------------------------------------------------------------

def _plots(groups: Mapping[str, Group]) -> dict[str, str]:
    """Name, which begins with "beside" or "growth" → SVG."""
    found = {}
    for name in ("train1", "train2"):
        if name not in groups:
            continue
        case = groups[name].figures[0].case
        cpu = [f for f in groups[name].figures if f.measure == "cpu"]
        found[f"beside-step-{name[-1]}"] = plots.bars(
            f"Processor time of a step of 1 ms beside the loop by hand, {case}",
            [(f.program, *_three(ratios(f.values, cpu[0].values))) for f in cpu], "×")
        found[f"beside-start-{name[-1]}"] = plots.bars(
            f"From the command to the end of the first step, {case}",
            [(f.program, *_three(spread(f.values))) for f in groups[name].figures
             if f.measure == "start"], "s")
    if "gpus" in groups:
        for measure, factor, up in (("first frame", 1.0, "s"), ("watching", 100.0, "% of a core")):
            series: dict[str, list[tuple[float, float, float, float]]] = {}
            for f in groups["gpus"].figures:
                if f.measure == measure:
                    # A program may need less than the clock of processor time can tell.
                    median, low, high = (max(v, 1e-4) * factor for v in _three(spread(f.values)))
                    series.setdefault(f.program, []).append(
                        (float(f.case.split()[0]), median, low, high))
            title = MEASURES["gpus", measure].title
            found[f"beside-gpus-{measure.replace(' ', '-')}"] = plots.lines(
                title[0].upper() + title[1:], series, "GPUs", up)
    for name, across in (("points", "points"), ("runs", "runs")):
        if name in groups:
            found[f"growth-{name}"] = plots.lines(
                reasons.TITLES[name], _lines(name, groups[name]), across, "s")
    return found


def _three(got: compare.Spread) -> tuple[float, float, float]:
    return got.median, got.low, got.high


def _lines(name: str, group: Group) -> dict[str, list[tuple[float, float, float, float]]]:
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for f in group.figures:
        size = float(f.program.split()[0].replace(",", ""))
        found.setdefault(MEASURES[name, f.measure].title.replace("`", ""), []).append(
            (size, *_three(spread(f.values))))
    return found


def _pictures(drawn: Mapping[Path, str], kind: str) -> str:
    return "\n".join(f"![{_title(text)}](performance/{path.name})\n"
                     for path, text in drawn.items() if path.name.startswith(kind))


def _title(svg: str) -> str:
    found = re.search(r"aria-label='([^']*)'", svg)
    return found[1] if found else ""
