"""gpu-engine slurm: the batch script for a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options


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
@spec_options
def command(choice: SpecChoice, nodes: int | None, gpus: int | None, partition: str | None,
            limit: str | None, options: tuple[str, ...], output: Path | None) -> None:
    """Write the batch script with which Slurm runs PRESET. The ranks save before the time limit,
    and the job goes on from there when it starts again."""
    from gpu_engine.common import places
    from gpu_engine.common.errors import UserError
    from gpu_engine.slurm.script import Place, batch_script, job_of

    asked = [f"partition={partition}"] if partition is not None else []
    asked += [f"time={limit}"] if limit is not None else []
    place = Place(choice.spec.run.python or sys.executable, str(Path.cwd()), str(places.home()))
    text = batch_script(choice.spec, job_of(choice.spec, nodes, gpus, [*asked, *options]), place)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as err:
        raise UserError(f"{output}: can't be written: {err.strerror}") from None
    click.echo(f"{output} written; submit it with: sbatch {output}", err=True)
