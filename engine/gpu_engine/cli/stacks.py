"""gpu-engine stacks: print where in their code the ranks of a run are now."""

from __future__ import annotations

import sys
import time

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError


@click.command()
@click.argument("run", default="last", shell_complete=tab.live_runs)
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("--wait", type=click.FloatRange(0, 60), default=3.0, show_default=True,
              help="Seconds to wait for a stack to arrive.")
def command(run: str, rank: int | None, wait: float) -> None:
    """Print the current stacks of RUN's ranks and their loaders' workers, while training goes on.

    These are the stacks of all threads. The ranks write them into their logs. The exit code is 1
    if a rank gave none: it has ended, is still starting, or was suspended (SIGSTOP).
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
    local = not parts.spans(found.path)
    if not local:
        refused = queries.stacks(found, ranks)
        requested = [r for r in ranks if r not in refused]
    else:
        refused = {}
        requested = [r for r in ranks if stacks.request(found, r)]
    texts: dict[int, str] = {}
    changed = time.monotonic()
    end = changed + wait
    while time.monotonic() < end and (len(texts) < len(requested)
                                      or time.monotonic() < changed + stacks.WHOLE):
        time.sleep(0.05)
        now = {r: t for r in requested if (t := stacks.printed(found.log(r), before[r]))}
        if now != texts:
            texts, changed = now, time.monotonic()
    for r in ranks:
        echo(f"--- rank {r} ---")
        if r in texts:
            _echo(texts[r])
            for pid, text in stacks.below(found, r, wait) if r in requested and local else ():
                echo(f"--- rank {r}, process {pid} below it ---")
                _echo(text)
        elif r in requested:
            echo(f"requested, but nothing came within {wait:g} s: is the process suspended?")
        elif r in refused:
            echo(clean(f"can't be requested: {refused[r]}"))
        else:
            echo("can't be requested: the rank has ended, is still starting, or runs on "
                 "another machine")
    if len(texts) < len(ranks):
        sys.exit(1)


def _echo(text: str) -> None:
    echo("\n".join(clean(line) for line in text.splitlines()))
