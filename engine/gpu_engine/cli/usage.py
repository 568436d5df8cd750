"""gpu-engine usage: who had which devices for how long."""

from __future__ import annotations

import time

import click

from gpu_engine.cli.output import echo, for_scripts, in_json, table
from gpu_engine.common import values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError


@click.command()
@click.option("--by", type=click.Choice(["user", "run", "device"]), default="user",
              show_default=True)
@click.option("--since", "span", default="7d", metavar="TIME", show_default=True,
              help="For so long until now: 12h, 30d.")
@for_scripts
def command(by: str, span: str, as_json: bool) -> None:
    """List device-hours: of runs and holds, and of other users' processes, in steps of ten minutes
    in which a panel was open."""
    from gpu_engine.devices import use_log
    from gpu_engine.report import usage

    if not (seconds := values.seconds(span)):
        raise UserError(f"--since {span}: no length of time; give 12h, 7d or 30d")
    now = time.time()
    others, unknown = use_log.read(now - seconds, now)
    rows = usage.sums([*usage.of_runs(now - seconds, now), *others], by)
    if as_json:
        echo(in_json({"since": now - seconds, "until": now, "rows": [
            {by: row.name, "device_seconds": row.all, "runs": row.runs, "holds": row.holds,
             "seen": row.seen} for row in rows]}))
        return
    heads = [by, "device-hours", "runs", "holds", "seen"]
    shown = [[clean(row.name, 60), *map(_hours, (row.all, row.runs, row.holds, row.seen))]
             for row in rows]
    for line in table([heads, *shown] if shown else []):
        echo(line)
    if not rows:
        echo(f"nothing was used in the last {span}", err=True)
    if unknown:
        echo(f"{unknown} hold{'s were' if unknown > 1 else ' was'} killed and left out: nobody "
             "knows when", err=True)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 0.05 else "0.0" if hours == 0 else "< 0.1"
