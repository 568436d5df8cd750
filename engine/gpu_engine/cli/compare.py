"""gpu-engine compare: runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo
from gpu_engine.cli.tables import table
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.runs.compare import Row

@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--markdown", is_flag=True, help="As a table for a report or an issue.")
def command(runs: tuple[str, ...], as_json: bool, markdown: bool) -> None:
    """Show how RUNS (ids, beginnings of ids, or "last") ended, and in which settings, commits and
    versions they differ."""
    from gpu_engine.events.convert import json_safe
    from gpu_engine.launching.lookup import find
    from gpu_engine.runs import compare, facts, folder

    if len(runs) < 2:
        raise click.UsageError("name two runs or more; gpu-engine runs lists them")
    found = [find(name) for name in runs]
    if len({run.id for run in found}) < len(found):
        raise UserError(f"{', '.join(runs)}: these name {', '.join(r.id for r in found)}, so one "
                        "run would be compared with itself")
    told = [facts.read(run) for run in found]
    parts = compare.parts(told)
    settings = parts[1][1]
    if as_json:
        echo(folder.dumps(json_safe({
            "runs": [asdict(one) for one in told],
            "differences": {row.name: list(row.values) for row in settings}})))
        return
    for line in compare.markdown(told) if markdown else _table(compare.heads(told), parts):
        echo(line)
    if not settings and not markdown:
        echo("no setting differs")


def _table(heads: Sequence[str], parts: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """A blank line and a title before each part but the first."""
    from gpu_engine.runs.compare import cell

    rows: list[Sequence[str] | str] = [["", *heads]]
    for title, found in parts:
        if found:
            rows += ["", title] if title else []
            rows += [[row.name, *map(cell, row.values)] for row in found]
    return table(rows)
