"""gpu-engine queue: the runs that wait for their turn."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, for_scripts, in_json, table
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.cli.outputs import Waiting


@click.group(invoke_without_command=True)
@for_scripts
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the runs that wait for their turn, in order, and what each waits for.

    gpu-engine run --queue puts a run into the line; gpu-engine stop takes it out.
    """
    from gpu_engine.devices.leases import why_not
    from gpu_engine.queue import serve

    serve.ensure()
    if ctx.invoked_subcommand is None:
        if why := why_not():
            echo(f"note: {why}", err=True)
        _print(as_json)


@command.command()
@click.argument("run", shell_complete=tab.waiting_runs)
@click.argument("to", type=click.Choice(["first", "last"]))
def move(run: str, to: str) -> None:
    """Move RUN to the first or last place."""
    from gpu_engine.queue import serve
    from gpu_engine.runs import folder

    serve.move(folder.find(run), to)
    _print(False)


@command.command()
@click.argument("run", shell_complete=tab.waiting_runs)
@click.argument("number", type=int)
def priority(run: str, number: int) -> None:
    """Give RUN another priority: runs with a higher one start first."""
    from gpu_engine.queue import serve
    from gpu_engine.runs import folder

    serve.prioritise(folder.find(run), number)
    _print(False)


def _print(as_json: bool) -> None:
    from gpu_engine.queue import serve

    line = serve.line()
    if as_json:
        waiting: list[Waiting] = [{
            "place": n, "id": w.run.id, "name": w.state.name, "devices": w.entry.text,
            "reason": w.state.reason, "priority": w.entry.priority,
            "submitted": w.entry.submitted, "begin": w.entry.begin,
            "after": w.entry.after, "host": w.entry.host, "path": str(w.run.path)}
            for n, w in enumerate(line, 1)]
        echo(in_json(waiting))
        return
    searches = sorted(paths.queue_folder().glob("s*.search"))
    if not line and not searches:
        echo("no run waits; gpu-engine run --queue PRESET has one wait for free devices")
    now = time.time()
    rows = [[str(n), w.run.id, clean(w.state.name)[:24], str(w.entry.priority or ""),
             # One that has made room trained before.
             units.clock(now - max([w.entry.submitted, *(a.ended or 0 for a in w.state.attempts)])),
             clean(w.state.reason or "").removeprefix("waits ")] for n, w in enumerate(line, 1)]
    for text in table([["", "run", "name", "priority", "for", "waits"], *rows]) if rows else ():
        echo(text)
    for path in searches:  # what they ask for next waits for its turn
        from gpu_engine.sweep import group, study

        with suppress(UserError):  # all its runs were removed
            found = group.find(path.stem)
            if (search := study.so_far(found, group.without_figures(found))) is not None:
                echo(f"{found.id} {found.name}: {search.lines()[0]}")
