"""gpu-engine resume: another attempt of a run, from its last checkpoint."""

from __future__ import annotations

import shlex
import sys

import click

from gpu_engine.common.clean import clean


@click.command()
@click.argument("run")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
              help="Change a key for this attempt and those after it.")
@click.option("--like", type=click.IntRange(1), metavar="ATTEMPT",
              help="Start from the settings of this attempt, not of the last.")
@click.option("--from", "start", metavar="best|STEP", default="newest",
              help="Go on from the best checkpoint (by train.best), or from that of a step; what "
                   "was trained behind it is set aside.")
@click.option("--detach", is_flag=True, help="Return at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's state as JSON.")
def command(run: str, sets: tuple[str, ...], like: int | None, start: str, detach: bool,
            as_json: bool) -> None:
    """Continue RUN (an id, the beginning of one, or "last") from its newest checkpoint that loads.

    Under the same mode and number of ranks the losses go on to the bit as if nothing had
    happened; under another mode or number it loads and goes on.
    """
    from gpu_engine.cli import watch
    from gpu_engine.launch.found import find
    from gpu_engine.launch.launcher import resume
    from gpu_engine.runs import attempts
    from gpu_engine.runs import folder as runs

    found = find(run)
    doubtful = attempts.failed_settings(found, found.state()) if like is None else None
    prepared = resume(found, sets, like=like, start=start)
    if doubtful is not None:
        number, other = doubtful
        given = {s.partition("=")[0].strip() for s in sets}
        left = [o for o in other if o.partition("=")[0] not in given]
        if left:
            click.echo(clean(f"note: {' '.join(map(shlex.quote, left))} stays, with which the last "
                             f"attempt ended badly; --like {number} starts from the settings of "
                             f"attempt {number}"), err=True)
    if detach:
        click.echo(runs.dumps({"id": found.id, "path": str(found.path)}) if as_json else found.id)
        return
    sys.exit(watch.to_the_end(found, prepared.plan, as_json=as_json))
