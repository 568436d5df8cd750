"""gpu-engine stacks: print where in their code the ranks of a run are now."""

from __future__ import annotations

import sys
import time

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError

_WHOLE = 0.3
"""Seconds without a change after which a stack is taken for whole: it is written in pieces."""


@click.command()
@click.argument("run", default="last", shell_complete=tab.live_runs)
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("--wait", type=click.FloatRange(0, 60), default=3.0, show_default=True,
              help="Seconds to wait for a stack to arrive.")
def command(run: str, rank: int | None, wait: float) -> None:
    """Print the current stack of every thread of RUN's ranks, while training goes on.

    The ranks write them into their logs. The exit code is 1 if a rank gave none: it has ended, is
    still starting, or was suspended (SIGSTOP).
    """
    from gpu_engine.common.files import size_of
    from gpu_engine.launching.lookup import find
    from gpu_engine.remote.run import parts, queries
    from gpu_engine.runs import stacks

    found = find(run)
    if not found.state().live:
        raise UserError(f"run {found.id} is not running: it is {found.state().state}")
    ranks = found.ranks() if rank is None else [rank]
    before = {r: size_of(found.log(r)) for r in ranks}
    if parts.spans(found.path):
        refused = queries.stacks(found, ranks)
        requested = [r for r in ranks if r not in refused]
    else:
        refused = {}
        requested = [r for r in ranks if stacks.request(found, r)]
    texts: dict[int, str] = {}
    changed = time.monotonic()
    end = changed + wait
    while time.monotonic() < end and (len(texts) < len(requested)
                                      or time.monotonic() < changed + _WHOLE):
        time.sleep(0.05)
        now = {r: t for r in requested if (t := stacks.printed(found.log(r), before[r]))}
        if now != texts:
            texts, changed = now, time.monotonic()
    for r in ranks:
        echo(f"--- rank {r} ---")
        if r in texts:
            echo("\n".join(clean(line) for line in texts[r].splitlines()))
        elif r in requested:
            echo(f"requested, but nothing came within {wait:g} s: is the process suspended?")
        elif r in refused:
            echo(clean(f"can't be requested: {refused[r]}"))
        else:
            echo("can't be requested: the rank has ended, is still starting, or runs on "
                 "another machine")
    if len(texts) < len(ranks):
        sys.exit(1)
