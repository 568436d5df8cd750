"""gpu-engine slurm: the batch script for a run, written or submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import SpecError, UserError, telling

if TYPE_CHECKING:
    from gpu_engine.runs.job import Request
    from gpu_engine.spec.schema import RunSpec


@click.command(cls=WithCommand)
@click.option("--nodes", type=click.IntRange(1), help="Nodes (default: as the preset says).")
@click.option("--gpus", type=click.IntRange(1),
              help="GPUs of each node (default: as many as the preset names); on CPU slots, ranks.")
@click.option("--partition", help="Short for -o partition=…")
@click.option("--time", "limit", help="The time limit: short for -o time=…")
@click.option("-o", "options", multiple=True, metavar="KEY=VALUE",
              help="Any other option of sbatch, for example -o account=vision.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the script to this file.")
@click.option("--submit", is_flag=True,
              help="Submit it with sbatch; the run is then in the list of runs.")
@spec_options
def command(choice: SpecChoice, nodes: int | None, gpus: int | None, partition: str | None,
            limit: str | None, options: tuple[str, ...], output: Path | None,
            submit: bool) -> None:
    """Write or submit the batch script with which Slurm runs PRESET. The ranks save before the time
    limit, and the job goes on from there when it starts again."""
    from gpu_engine.common import paths
    from gpu_engine.interpreters import choose
    from gpu_engine.plan import without_effect
    from gpu_engine.slurm.script import Place, batch_script, job_of

    asked = [f"partition={partition}"] if partition is not None else []
    asked += [f"time={limit}"] if limit is not None else []
    job = job_of(choice.spec, nodes, gpus, [*asked, *options])
    # Not where a job is resumed: its spec can't be changed as freely.
    if problems := without_effect.refused(choice.spec, without_effect.SLURM):
        raise SpecError(problems)
    for warning in without_effect.told(choice.spec, without_effect.SLURM):
        echo(f"warning: {warning}", err=True)
    if submit:
        if output is not None:
            raise UserError("--output writes the script and --submit submits it: leave one out")
        _submit(choice.spec, job)
        return
    place = Place(choose.for_nodes(choice.spec.run.python), str(Path.cwd()), str(paths.home()))
    text = batch_script(choice.spec, job, place)
    if output is None:
        echo(text, nl=False)
        return
    with telling(f"{output}: can't be written"):
        output.write_text(text)
    echo(f"{output} written; submit it with: sbatch {output}", err=True)


def _submit(spec: RunSpec, job: Request) -> None:
    from gpu_engine.launching import notifier
    from gpu_engine.runs.job import read
    from gpu_engine.slurm import submit, watch

    run, there = submit.submit(spec, job)
    notifier.start(run)
    watch.refresh(at_once=True)
    known = read(run.path) or there
    echo(f"run {run.id} submitted: {clean(known.sentence())}")
    echo(f"gpu-engine show {run.id} says how it is, gpu-engine stop {run.id} ends it: "
         f"{run.path}", err=True)
