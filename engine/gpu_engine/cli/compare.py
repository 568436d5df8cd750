"""gpu-engine compare: runs side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.runs.compare import Row, RunFacts
    from gpu_engine.runs.folder import Run

_WIDEST = 48
"""Characters of a value that the table shows."""


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--markdown", is_flag=True, help="As a table for a report or an issue.")
def command(runs: tuple[str, ...], as_json: bool, markdown: bool) -> None:
    """Show how RUNS (ids, beginnings of ids, or "last") ended, and in which settings, commits and
    versions they differ."""
    from gpu_engine.events.convert import json_safe
    from gpu_engine.launch.found import find
    from gpu_engine.runs import compare, folder

    if len(runs) < 2:
        raise click.UsageError("name two runs or more; gpu-engine runs lists them")
    found = [find(name) for name in runs]
    if len({run.id for run in found}) < len(found):
        raise UserError(f"{', '.join(runs)}: these name {', '.join(r.id for r in found)}, so one "
                        "run would be compared with itself")
    facts = [_facts(run) for run in found]
    settings, others = compare.setting_rows(facts), compare.environment_rows(facts)
    if as_json:
        click.echo(folder.dumps(json_safe({
            "runs": [asdict(one) for one in facts],
            "differences": {row.name: list(row.values) for row in settings}})))
        return
    parts = [("", compare.figure_rows(facts)), ("settings", settings), ("environment", others)]
    heads = [f"{one.id} {one.name}" for one in facts]
    for line in _markdown(heads, parts) if markdown else _table(heads, parts):
        click.echo(line)
    if not settings and not markdown:
        click.echo("no setting differs")


def _facts(run: Run) -> RunFacts:
    from gpu_engine.runs import attempts, environment
    from gpu_engine.runs.compare import RunFacts, figures
    from gpu_engine.runs.follow import Follower
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import flat

    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    ranks = list(follower.ranks.values())
    return RunFacts(run.id, clean(follower.state.name),
                    figures(follower.state, follower.progress(), ranks, time.time()),
                    flat(from_dict(attempts.read_spec(run))), environment.read(run.path))


def _table(heads: Sequence[str], parts: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """Columns of equal width, a blank line and a title before each part but the first."""
    rows = [row for _, found in parts for row in found]
    first = max((len(r.name) for r in rows), default=0)
    widths = [max(len(heads[i]), *(len(_cell(r.values[i])) for r in rows))
              for i in range(len(heads))]
    out = []
    for title, found in parts:
        if found:
            out += ["", title] if title else \
                ["  ".join([" " * first, *map(str.ljust, heads, widths)]).rstrip()]
            out += ["  ".join([r.name.ljust(first), *map(str.ljust, map(_cell, r.values), widths)]
                              ).rstrip() for r in found]
    return out


def _markdown(heads: Sequence[str], parts: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    return [line(["", *heads]), "|" + "---|" * (len(heads) + 1),
            *(line([row.name, *map(_cell, row.values)]) for _, found in parts for row in found)]


def _cell(value: str | None) -> str:
    text = "–" if value is None else clean(value)
    return text if len(text) <= _WIDEST else text[:_WIDEST - 1] + "…"
