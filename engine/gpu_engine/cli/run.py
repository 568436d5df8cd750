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
    from gpu_engine.launch.launcher import prepare, start
    from gpu_engine.runs import folder as runs

    prepared = prepare(asked.spec, base=asked.base)
    run = start(prepared)
    if detach:
        for warning in prepared.plan.warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(runs.dumps({"id": run.id, "path": str(run.path)}) if as_json else run.id)
        return
    from gpu_engine.cli import watch

    sys.exit(watch.to_the_end(run, prepared.plan, as_json=as_json))
