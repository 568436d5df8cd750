"""gpu-engine stop: ask a run to save and end."""

from __future__ import annotations

import time

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo


@click.command()
@click.argument("run", shell_complete=tab.live_runs)
@click.option("--now", is_flag=True, help="Kill the ranks at once, without a checkpoint.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has ended (the default).")
def command(run: str, now: bool, wait: bool) -> None:
    """Stop RUN (an id, the beginning of one, or "last"). A task's ranks finish their step and save;
    your own command gets SIGINT, as from Ctrl-C, or its run.stop_signal, and if it is stopped again
    SIGTERM. A job that waits in Slurm's queue is cancelled."""
    from gpu_engine.launching.lookup import ask_slurm, find, stop

    found = find(run)
    stop(found, now=now)
    if not wait:
        return
    said = None
    while (state := found.state()).live:
        if state.state == "stopping" and state.reason and state.reason != said:
            said = state.reason
            echo(said, err=True)
        time.sleep(0.1)
        ask_slurm(found)
    echo(f"{found.id} {state.state}" + (f": {state.reason}" if state.reason else ""))
