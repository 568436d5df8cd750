"""gpu-engine stacks: where the ranks of a run are right now."""

from __future__ import annotations

import sys
import time

import click


@click.command()
@click.argument("run", default="last")
@click.option("--rank", type=click.IntRange(0), help="One rank alone.")
@click.option("--wait", type=click.FloatRange(0, 60), default=3.0, show_default=True,
              help="Seconds to wait for a stack to arrive.")
def command(run: str, rank: int | None, wait: float) -> None:
    """Print the stack of every thread of RUN's ranks, as it is now; training goes on.

    The ranks write them into their logs. Exit code 1 where a rank gave none: it has ended, is
    still starting, or was stopped (SIGSTOP).
    """
    from gpu_engine.common.clean import clean
    from gpu_engine.common.errors import UserError
    from gpu_engine.launch.found import find
    from gpu_engine.runs import stacks
    from gpu_engine.spanning import asking, parts

    found = find(run)
    if not found.state().live:
        raise UserError(f"run {found.id} is not running: it is {found.state().state}")
    ranks = found.ranks() if rank is None else [rank]
    before = {r: stacks.size_of(found.log(r)) for r in ranks}
    if parts.spans(found.path):
        refused = asking.stacks(found, ranks)
        asked = [r for r in ranks if r not in refused]
    else:
        refused = {}
        asked = [r for r in ranks if stacks.request(found, r)]
    texts: dict[int, str] = {}
    end = time.monotonic() + wait
    while len(texts) < len(asked) and time.monotonic() < end:
        time.sleep(0.05)
        texts |= {r: t for r in asked if (t := stacks.printed(found.log(r), before[r]))}
    for r in ranks:
        click.echo(f"--- rank {r} ---")
        if r in texts:
            click.echo("\n".join(clean(line) for line in texts[r].splitlines()))
        elif r in asked:
            click.echo(f"asked, but nothing came within {wait:g} s: is the process stopped?")
        elif r in refused:
            click.echo(clean(f"can't be asked: {refused[r]}"))
        else:
            click.echo("can't be asked: it has ended, has not come as far as to listen, or runs "
                       "on another machine")
    if len(texts) < len(ranks):
        sys.exit(1)
