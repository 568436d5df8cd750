"""gpu-engine run: launch, and follow to the end unless told to detach."""

from __future__ import annotations

import sys

import click

from gpu_engine.cli.asked import Asked, WithCommand, spec_options


@click.command(cls=WithCommand)
@click.option("--detach", is_flag=True, help="Print the run's id and return at once.")
@click.option("--json", "as_json", is_flag=True,
              help="Print the run's state as JSON, at the end (with --detach: now).")
@spec_options
def command(asked: Asked, detach: bool, as_json: bool) -> None:
    """Start a run from PRESET (a name or a .toml file), or from your own command behind --.

    The run lives on its own: closing this terminal leaves it going, Ctrl-C stops it.
    """
    from gpu_engine import follow, runs
    from gpu_engine.launch import prepare, start

    prepared = prepare(asked.spec, base=asked.base)
    run = start(prepared)
    if detach:
        click.echo(runs.dumps({"id": run.id, "path": str(run.path)}) if as_json else run.id)
        return
    from gpu_engine.cli import watch

    if not as_json:
        for warning in prepared.plan.warnings:
            click.echo(f"warning: {warning}", err=True)
        plan = prepared.plan
        click.echo(f"run {run.id}  {plan.name}  {plan.batch.sentence(plan.unit)}  {run.path}",
                   err=True)
    follower = follow.Follower(run)
    state = watch.watch(follower, quiet=as_json)
    if as_json:
        click.echo(runs.dumps(state.to_dict()))
    else:
        watch.report_end(follower)
    sys.exit(runs.EXIT_CODES[state.state])
