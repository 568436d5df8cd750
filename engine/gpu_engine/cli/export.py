"""gpu-engine export: write a run's weights to a file of plain tensors."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--from", "which", metavar="best|STEP", default="newest",
              help="Use the best checkpoint (by train.best), or the one of a step.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(run: str, out: Path, which: str, as_json: bool) -> None:
    """Write the weights of RUN to OUT, which ends with .safetensors, .pt or .pth. They are those of
    its newest checkpoint that loads, or of the one that --from names."""
    from gpu_engine.common import units
    from gpu_engine.launch import torchside
    from gpu_engine.launch.found import find
    from gpu_engine.runs import checkpoints, folder
    from gpu_engine.spanning import asking, parts
    from gpu_engine.spec.schema import RunSpec

    found = find(run)
    plan = found.plan()
    spec = plan.spec if plan is not None else RunSpec()
    if parts.spans(found.path):
        name = asking.fetch(found, which, spec.train.best, lambda text: click.echo(text, err=True))
    else:
        name = checkpoints.choose(found.checkpoints, which, spec.train.best)
    told = torchside.export(found.checkpoints, out.absolute(), name, python=spec.run.python)
    for warning in told["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo(folder.dumps(told) if as_json else
               f"{out}: {told['tensors']} tensors of step {told['step']}, "
               f"{units.size(told['bytes'])}")
