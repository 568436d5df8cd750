"""gpu-engine runs: list and delete runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run, State


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("-n", "count", type=click.IntRange(1), default=20, show_default=True,
              help="How many runs to list.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, count: int) -> None:
    """List the runs, newest first."""
    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.common import units
    from gpu_engine.common.clean import clean
    from gpu_engine.launch.taking_up import take_up_all
    from gpu_engine.runs import folder

    take_up_all()
    found = folder.all_runs()
    rows = [(run, run.state()) for run in found[:count]]
    if as_json:
        click.echo(folder.dumps([s.to_dict() | {"path": str(r.path)} for r, s in rows]))
        return
    now = time.time()
    for run, state in rows:
        plan = run.plan()
        took = (state.ended or now) - state.started if state.started else None
        click.echo(f"{run.id:<6} {state.state:<10} {clean(state.name):<20.20} "
                   f"{clean(plan.mode) if plan else '?':<9} ×{plan.world_size if plan else '?':<3} "
                   f"{units.clock(took):>8}  {units.ago(now - state.created):<12}"
                   + "".join(f" {clean(why)};" for why in _why(run, state)).rstrip(";"))
    if not rows:
        click.echo("no runs yet; gpu-engine run default starts one", err=True)
    elif len(found) > count:
        click.echo(f"and {len(found) - count} older ones; -n shows more", err=True)


def _why(run: Run, state: State) -> list[str]:
    """The reason for a run's state, and the first file of its folder that can't be read."""
    odd = [why for why in run.odd()[:1] if why != state.reason]
    return [*([state.reason] if state.reason else []), *odd]


@command.command()
@click.argument("run", nargs=-1, required=True)
def rm(run: tuple[str, ...]) -> None:
    """Delete RUNs that have ended, with their checkpoints."""
    from gpu_engine.common import units
    from gpu_engine.launch.found import find

    for one in [find(name) for name in run]:  # one that goes on elsewhere is live
        size = one.size()
        one.remove()
        click.echo(f"{one.id} removed, {units.size(size)} freed")


@command.command()
@click.option("--keep", type=click.IntRange(0), required=True,
              help="How many of the newest to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def prune(keep: int, dry_run: bool) -> None:
    """Delete all but the newest of the runs that have ended."""
    from gpu_engine.common import units
    from gpu_engine.launch.taking_up import take_up_all
    from gpu_engine.runs import folder

    take_up_all()
    ended = [r for r in folder.all_runs() if r.state().state in folder.FINAL]
    total = 0
    for one in ended[keep:]:
        size = one.size()
        if not dry_run:
            try:
                one.remove()
            except (OSError, UserError) as err:
                click.echo(f"{one.id}: {err}", err=True)
                continue
        total += size
        click.echo(f"{one.id} {'would be removed' if dry_run else 'removed'}, {units.size(size)}")
    click.echo(f"{units.size(total)} in all", err=True)
