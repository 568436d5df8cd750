"""gpu-engine export: a run's weights as plain tensors."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(run: str, out: Path, as_json: bool) -> None:
    """Write the weights of RUN's newest checkpoint that loads to OUT (a .safetensors file)."""
    from gpu_engine import runs, torchside, units

    found = runs.find(run)
    python = found.plan().get("spec", {}).get("run", {}).get("python")
    told = torchside.ask("export", str(found.checkpoints), str(out.absolute()), python=python)
    for warning in told["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo(runs.dumps(told) if as_json else
               f"{out}: {told['tensors']} tensors of step {told['step']}, "
               f"{units.size(told['bytes'])}")
