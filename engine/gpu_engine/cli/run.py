"""gpu-engine run: start a run, and follow it to its end or detach from it."""

from __future__ import annotations

import sys

import click

from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options


@click.command(cls=WithCommand)
@click.option("--detach", is_flag=True, help="Print the run's id and return at once.")
@click.option("--json", "as_json", is_flag=True,
              help="Print the run's state as JSON, at the end (with --detach: now).")
@spec_options
def command(choice: SpecChoice, detach: bool, as_json: bool) -> None:
    """Start a run from PRESET (a name or a .toml file), or from your own command behind --.

    The run does not need this terminal: closing it leaves the run alone; Ctrl-C stops the run.
    """
    from gpu_engine.launch.launcher import prepare, start
    from gpu_engine.runs import folder

    prepared = prepare(choice.spec, base=choice.base)
    run = start(prepared)
    if detach:
        for warning in prepared.plan.warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(folder.dumps({"id": run.id, "path": str(run.path)}) if as_json else run.id)
        return
    from gpu_engine.cli import watch

    sys.exit(watch.to_the_end(run, prepared.plan, as_json=as_json))
