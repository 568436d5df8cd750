"""gpu-engine run: start a run, and follow it to its end or detach from it; or have it wait."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.cli.spec_options import (
    SpecChoice,
    WithCommand,
    grid_options,
    members_of,
    show,
    spec_options,
)

if TYPE_CHECKING:
    from gpu_engine.queue.submit import When
    from gpu_engine.runs.folder import Run


@click.command(cls=WithCommand)
@click.option("--detach", is_flag=True, help="Print the run's id and return at once.")
@click.option("--json", "as_json", is_flag=True,
              help="Print lines of JSON: what the ranks record, and at the end the run's state "
                   "(with --detach: its id).")
@click.option("--quiet", "-q", is_flag=True,
              help="Print only what the ranks print, and the result.")
@click.option("--queue", "queued", is_flag=True,
              help="Print the run's id and return at once; it starts when its devices are free and "
                   "the runs before it have theirs.")
@click.option("--after", metavar="RUN", shell_complete=tab.runs,
              help="With --queue: not before RUN has completed.")
@click.option("--begin", metavar="TIME",
              help="With --queue: not before TIME, as 22:00, +90m or 2026-11-23 22:00.")
@click.option("--priority", type=int, metavar="N",
              help="With --queue: before waiting runs with a lower one (0 unless given).")
@click.option("--free-for", type=float, metavar="SECONDS",
              help="With --queue: only on devices that have been free for so long.")
@grid_options
@click.option("--dry-run", is_flag=True,
              help="With --grid or --repeat: check all runs and list them; submit nothing.")
@click.option("--no-notify", is_flag=True,
              help="Send no notifications about this run, whatever notify.toml says.")
@spec_options
def command(choice: SpecChoice, detach: bool, as_json: bool, quiet: bool, queued: bool,
            after: str | None, begin: str | None, priority: int | None, free_for: float | None,
            grid: tuple[str, ...], repeat: int, dry_run: bool, no_notify: bool) -> None:
    """Start a run from PRESET (a name or a .toml file), or from your own command behind --.

    The run does not need this terminal: closing it leaves the run alone; Ctrl-C stops the run.

    With --grid or --repeat it is a sweep: many runs, which wait in the queue. gpu-engine sweep
    compares them.
    """
    if no_notify and (queued or grid or repeat > 1):
        raise click.UsageError("--no-notify is for a run that starts at once")
    if grid or repeat > 1:
        members = members_of(choice, grid, repeat)
        if dry_run:
            show(members, choice, as_json=as_json)
            return
        from gpu_engine.sweep import submit

        sweep = submit.submit(members, _when(after, begin, priority, free_for), choice.spec.name,
                              choice.base)
        _warn(sweep.doubt)
        echo(in_json({"id": sweep.id, "runs": [run.id for run in sweep.runs]})
             if as_json else f"{sweep.id}: {len(sweep.runs)} runs wait for their turn; "
                             f"gpu-engine sweep {sweep.id} compares them")
        return
    if dry_run:
        raise click.UsageError("--dry-run goes with --grid or --repeat; gpu-engine plan shows what "
                               "a single run would do")
    if queued:
        _wait(choice, as_json, _when(after, begin, priority, free_for))
        return
    for option, value in (("--after", after), ("--begin", begin), ("--priority", priority),
                          ("--free-for", free_for)):
        if value is not None:
            raise click.UsageError(f"{option} goes with --queue, as the run starts at once without")
    from gpu_engine.launching.launcher import prepare, start

    prepared = prepare(choice.spec, base=choice.base)
    if not detach:
        from gpu_engine.cli import watch

        watch.hold()  # from here on Ctrl-C stops the run
        run = start(prepared, tell=not no_notify)
        sys.exit(watch.to_the_end(run, prepared.plan, as_json=as_json, quiet=quiet))
    run = start(prepared, tell=not no_notify)
    if prepared.plan.chosen is not None:
        echo(prepared.plan.chosen, err=True)
    for warning in prepared.plan.warnings:
        echo(f"warning: {warning}", err=True)
    _started(run, as_json)


def _when(after: str | None, begin: str | None, priority: int | None, free_for: float | None
          ) -> When:
    """When a run that waits may start. Raises UserError."""
    from gpu_engine.queue.submit import When, moment
    from gpu_engine.runs import folder

    first = folder.find(after).id if after is not None else None
    return When(first, None if begin is None else moment(begin, time.time()), priority or 0,
                free_for or 0.0)


def _wait(choice: SpecChoice, as_json: bool, when: When) -> None:
    from gpu_engine.queue import submit

    prepared = submit.prepare(choice.spec)
    run = submit.submit(choice.spec, when, prepared, base=choice.base)
    _warn(prepared.kept.doubt)
    _started(run, as_json)


def _started(run: Run, as_json: bool) -> None:
    echo(in_json({"id": run.id, "path": str(run.path)}) if as_json else run.id)


def _warn(doubt: str | None) -> None:
    if doubt is not None:
        echo(f"warning: {doubt}", err=True)
