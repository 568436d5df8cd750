"""gpu-engine resume: start another attempt of a run, from a checkpoint."""

from __future__ import annotations

import shlex
import sys

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.cli.spec_options import spelled_out
from gpu_engine.common.clean import clean


@click.command()
@click.argument("run", shell_complete=tab.runs)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
              shell_complete=tab.sets,
              help="Change a key for this attempt and those after it.")
@click.option("--like", type=click.IntRange(1), metavar="ATTEMPT",
              help="Use the settings of this attempt, not those of the last.")
@click.option("--from", "start", metavar="best|STEP", default="newest",
              help="Continue from the best checkpoint (by train.best), or from the one of a step; "
                   "later checkpoints are moved aside.")
@click.option("--detach", is_flag=True, help="Return at once.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON, as run does.")
@click.option("--quiet", "-q", is_flag=True,
              help="Print only what the ranks print, and the result.")
def command(run: str, sets: tuple[str, ...], like: int | None, start: str, detach: bool,
            as_json: bool, quiet: bool) -> None:
    """Continue RUN (an id, the beginning of one, or "last") from its newest checkpoint that loads.

    With the same mode and number of ranks, the losses continue bit for bit as if the run had never
    ended. With another mode or number of ranks, the checkpoint is loaded too.
    """
    from gpu_engine.cli import watch
    from gpu_engine.launching.launcher import resume
    from gpu_engine.launching.lookup import find
    from gpu_engine.runs import attempts, job

    found, changes = find(run), spelled_out(sets)
    doubtful = attempts.failed_settings(found, found.state()) if like is None else None
    prepared = resume(found, changes, like=like, start=start)
    if doubtful is not None:
        number, other = doubtful
        given = {s.partition("=")[0].strip() for s in changes}
        left = [o for o in other if o.partition("=")[0] not in given]
        if left:
            echo(clean(f"note: {' '.join(map(shlex.quote, left))} is kept, though the last "
                             f"attempt failed with it; --like {number} uses the settings of "
                             f"attempt {number}"), err=True)
    slurm = job.read(found.path)
    if slurm is not None and not as_json:
        echo(f"run {found.id} submitted: {clean(slurm.sentence())}")
        return
    if detach or slurm is not None:
        echo(in_json({"id": found.id, "path": str(found.path)}) if as_json else found.id)
        return
    sys.exit(watch.to_the_end(found, prepared.plan, as_json=as_json, quiet=quiet))
