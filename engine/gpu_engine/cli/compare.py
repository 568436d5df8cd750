"""gpu-engine compare: runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json, table

if TYPE_CHECKING:
    from gpu_engine.runs.compare import Row


def _percent(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """"5%" or "5" as 0.05."""
    if value is None:
        return None
    try:
        found = float(value.removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not 0 <= found < 1000:
        raise click.BadParameter(f"{value!r}: expected a percentage, such as 5%")
    return found


@click.command()
@click.argument("runs", nargs=-1, required=True, shell_complete=tab.runs)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--markdown", is_flag=True, help="As a table for a report or an issue.")
@click.option("--max-step-regression", "limit", metavar="PERCENT", callback=_percent,
              help="End with 1 if the second run's median step takes longer than the first's by "
                   "more than this, such as 5%.")
def command(runs: tuple[str, ...], as_json: bool, markdown: bool, limit: float | None) -> None:
    """Show how RUNS (ids, beginnings of ids, or "last") ended, and in which settings, commits and
    versions they differ."""
    from gpu_engine.diagnose import regression
    from gpu_engine.launching.lookup import find_each
    from gpu_engine.runs import compare

    if len(runs) < 2:
        raise click.UsageError("name two runs or more; gpu-engine runs lists them")
    if limit is not None and len(runs) != 2:
        raise click.UsageError("--max-step-regression compares two runs: the one before, and the "
                               "one after")
    found = find_each(runs)
    told = [compare.read(run)[0] for run in found]
    parts = compare.parts(told)
    settings = parts[1][1]
    change = None if limit is None else regression.compare(*found)
    worse = change is not None and limit is not None and change.change > limit
    if as_json:
        out: dict[str, object] = {
            "runs": [asdict(one) for one in told],
            "differences": {row.name: list(row.values) for row in settings}}
        if change is not None:
            out["step_time"] = {**asdict(change), "change": change.change, "limit": limit}
        echo(in_json(out))
    else:
        for line in compare.markdown(told) if markdown else _table(compare.heads(told), parts):
            echo(line)
        if not settings and not markdown:
            echo("no setting differs")
        if change is not None and limit is not None:
            echo(change.text(limit))
    if worse:
        sys.exit(1)


def _table(heads: Sequence[str], parts: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """A blank line and a title before each part but the first."""
    from gpu_engine.runs.compare import cell

    rows: list[Sequence[str] | str] = [["", *heads]]
    for title, found in parts:
        if found:
            rows += ["", title] if title else []
            rows += [[row.name, *map(cell, row.values)] for row in found]
    return table(rows)
