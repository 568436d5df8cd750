"""gpu-engine report and page: runs, or the devices and all that runs now, as one HTML file; and
usage: who had which devices for how long."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, for_scripts, in_json, table
from gpu_engine.common import values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, require_replaceable, telling
from gpu_engine.common.files import write_atomic
from gpu_engine.common.programs import version

_MOST = 16


@click.command()
@click.argument("runs", nargs=-1, required=True, shell_complete=tab.runs, metavar="RUN…")
@click.option("-o", "--out", type=click.Path(path_type=Path),
              help="The file, or its folder. [default: report-RUN.html]")
def command(runs: tuple[str, ...], out: Path | None) -> None:
    """Write what is known of RUN as one HTML file: how it ended, evaluations, curves, what was
    asked and where, its attempts. Several RUNs are compared."""
    from gpu_engine.places.verbs import find_each
    from gpu_engine.report import content, formats

    found = find_each(runs)
    ids = [run.id for run in found]
    if len(ids) > _MOST:
        raise UserError(f"{len(ids)} runs: at most {_MOST} fit into one report")
    name = f"report-{'-'.join(ids[:4])}.html"
    path = out or Path(name)
    if path.is_dir():
        path = path / name
    if path.suffix in (".md", ".pdf"):
        raise UserError(f"{path}: a report is HTML; name a file that ends with .html")
    told = [content.read(run) for run in found]
    title = told[0].title if len(told) == 1 else "Runs " + ", ".join(ids)
    sections = content.of_run(told[0]) if len(told) == 1 else content.of_several(told)
    when = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(told[0].at))
    made = f"Made on {when} by gpu-panel {version()}"
    with telling(f"{path}: can't be written"):
        require_replaceable(path, formats.BEGINS.encode())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, formats.html(title, sections, made), mode=0o666)
    echo(str(path))


@click.command()
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False),
              default=Path("gpu-panel.html"), show_default=True, help="The file.")
@click.option("--every", type=click.IntRange(1, 86400), metavar="SECONDS",
              help="Write it again so often, until ctrl+c; a browser then loads it again itself.")
def page(out: Path, every: int | None) -> None:
    """Write devices, runs, curves and the ends of logs into one HTML file, to look at."""
    from gpu_engine.devices import sampler
    from gpu_engine.devices.discover import discover
    from gpu_engine.report import formats, page

    inventory, first = discover(), True
    while first or every:
        sections = page.of_all(sampler.take_several(inventory))
        made = f"Read on {time.strftime('%Y-%m-%d %H:%M:%S %Z')} by gpu-panel {version()}"
        with telling(f"{out}: can't be written"):
            require_replaceable(out, formats.BEGINS.encode())
            write_atomic(out, formats.html(f"gpu-panel on {socket.gethostname()}", sections, made,
                                           every), mode=0o600)
        if first:
            echo(str(out))
        first = False
        time.sleep(every or 0)


@click.command()
@click.option("--by", type=click.Choice(["user", "run", "device"]), default="user",
              show_default=True)
@click.option("--since", "span", default="7d", metavar="TIME", show_default=True,
              help="For so long until now: 12h, 30d.")
@for_scripts
def usage(by: str, span: str, as_json: bool) -> None:
    """List device-hours: of runs and holds, and of other users' processes, in steps of ten minutes
    in which a panel was open."""
    from gpu_engine.devices import use_log
    from gpu_engine.places import verbs
    from gpu_engine.report import usage as uses

    if not (seconds := values.seconds(span)):
        raise UserError(f"--since {span}: no length of time; give 12h, 7d or 30d")
    verbs.look_at_all()
    now = time.time()
    others, unknown = use_log.read(now - seconds, now)
    rows = uses.sums([*uses.of_runs(now - seconds, now), *others], by)
    if as_json:
        echo(in_json({"since": now - seconds, "until": now, "rows": [
            {by: row.name, "device_seconds": row.all, "runs": row.runs, "holds": row.holds,
             "seen": row.seen, "slots": row.slots} for row in rows]}))
        return
    slots = any(row.slots for row in rows)
    heads = [by, "device-hours", "runs", "holds", "seen", *["CPU slots"] * slots]
    shown = [[clean(row.name, 60), *map(_hours, (row.all, row.runs, row.holds, row.seen)),
              *[_hours(row.slots)] * slots] for row in rows]
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
