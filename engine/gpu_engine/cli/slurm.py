"""gpu-engine slurm: the batch script for a run, written or submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, telling

if TYPE_CHECKING:
    from gpu_engine.spec.schema import RunSpec


@click.command(cls=WithCommand)
@click.option("--gpus", type=click.IntRange(1),
              help="GPUs of each node (default: as many as the preset names); on CPU slots, ranks.")
@click.option("--partition", help="Short for -o partition=…")
@click.option("--time", "limit", help="The time limit: short for -o time=…")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the script to this file.")
@click.option("--submit", is_flag=True,
              help="Submit it with sbatch, as run --set devices.hosts=slurm does.")
@spec_options
def command(choice: SpecChoice, gpus: int | None, partition: str | None, limit: str | None,
            output: Path | None, submit: bool) -> None:
    """Write or submit the batch script with which Slurm runs PRESET, or your own command behind --.
    The ranks save before the time limit, and the job goes on from there when it starts again."""
    from gpu_engine.slurm.submit import for_slurm, plan_of, script_of

    options = {"partition": partition, "time": limit}
    spec = for_slurm(choice.spec, gpus, {k: v for k, v in options.items() if v is not None})
    if submit:
        if output is not None:
            raise UserError("--output writes the script and --submit submits it: leave one out")
        _submit(spec)
        return
    # It may be for a machine that has other files: only what is in the spec is looked at.
    for warning in plan_of(spec).warnings:
        echo(f"warning: {warning}", err=True)
    text = script_of(spec)
    if output is None:
        echo(text, nl=False)
        return
    with telling(f"{output}: can't be written"):
        output.write_text(text)
    echo(f"{output} written; submit it with: sbatch {output}", err=True)


def _submit(spec: RunSpec) -> None:
    from gpu_engine.places import slurm
    from gpu_engine.runs.job import read
    from gpu_engine.slurm import watch

    prepared = slurm.prepare(spec)
    for warning in prepared.plan.warnings:
        echo(f"warning: {warning}", err=True)
    run = slurm.start(prepared)
    watch.refresh(at_once=True)
    known = read(run.path)
    echo(f"run {run.id} submitted" + (f": {clean(known.sentence())}" if known else ""))
    echo(f"gpu-engine show {run.id} says how it is, gpu-engine stop {run.id} ends it: "
         f"{run.path}", err=True)
