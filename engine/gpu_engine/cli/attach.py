"""gpu-engine attach: this terminal is that of a rank, until the person detaches."""

from __future__ import annotations

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--rank", type=click.IntRange(0), help="The rank; none: the one that has a terminal.")
def command(run: str, rank: int | None) -> None:
    """Go to the terminal of the rank that RUN was started with as --debug-rank.

    breakpoint() and pdb work there as in any terminal; Ctrl-C opens the debugger where the rank is.
    Ctrl-] detaches and leaves the rank running; attach again as often as you like.
    """
    from gpu_engine.launching.lookup import find
    from gpu_engine.runs.terminal import attach

    found = find(run)
    if attach(found, rank, echo):
        echo(f"detached; gpu-engine attach {found.id} comes back")
    else:
        echo(f"the rank has ended; gpu-engine show {found.id} says how")
