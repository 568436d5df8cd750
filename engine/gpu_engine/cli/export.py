"""gpu-engine export: a run's weights to a file, or its figures to other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, for_scripts, in_json
from gpu_engine.common import units
from gpu_engine.common.errors import UserError, require_replaceable, telling
from gpu_engine.export import TARGETS

if TYPE_CHECKING:
    from gpu_engine.export.exporter import Exported


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN [OUT] | RUN… --to TARGET",
                shell_complete=tab.runs_or_files)
@click.option("--from", "which", metavar="best|STEP",
              help="Weights of the best checkpoint (by train.best), or of that of a step.")
@click.option("--best", hidden=True)
@click.option("--to", type=click.Choice((*TARGETS, "optuna")),
              help="Export the figures, not the weights.")
@click.option("-o", "--out", type=click.Path(path_type=Path),
              help="csv: the file, or a folder for several runs (RUN.csv). tensorboard: the logdir "
                   "(tensorboard). wandb: the folder in which wandb/ is (the present one). optuna: "
                   "the file (SWEEP.db).")
@click.option("--project", metavar="NAME", help="wandb: its project. [default: gpu-panel]")
@click.option("--python", metavar="PATH", help="For weights: the interpreter with torch that "
                                               "writes them. [default: that of a run here]")
@for_scripts
def command(words: tuple[str, ...], which: str | None, best: str | None, to: str | None,
            out: Path | None, project: str | None, python: str | None, as_json: bool) -> None:
    """Write the weights of RUN to OUT, which ends with .safetensors, .pt or .pth: those of its
    newest checkpoint that loads, or of the one that --from names. Or, with --to, write what RUNs
    have recorded (loss, evaluations, learning rate, speed, memory, devices) as a CSV file, for
    TensorBoard or for Weights & Biases; the last two need their own library. --to optuna writes the
    runs of a sweep, RUN being its id, as a study for optuna-dashboard. Without OUT and --to: tell
    which checkpoint is meant."""
    wrong: dict[str, object] = {"--out": out} if to is None \
        else {"--from": which, "--python": python}
    if to != "wandb":
        wrong["--project"] = project
    for option in (name for name, value in wrong.items() if value):
        raise click.UsageError(f"{option} does not go with "
                               + (f"--to {to}" if to else "weights: --to exports figures"))
    if to == "optuna":
        _study(words, out, as_json)
    elif to is not None:
        _figures(words, to, out, project, as_json)
    elif len(words) == 2:
        _weights(words[0], Path(words[1]), which or "newest", python, as_json)
    elif len(words) == 1:
        from gpu_engine.places import verbs

        name = verbs.checkpoint(verbs.find(words[0]), which or "newest", best)
        echo(in_json({"checkpoint": name}) if as_json else name)
    else:
        raise click.UsageError("name a run and the file for its weights, or --to csv (or "
                               f"{', '.join(TARGETS[1:])}) for its figures")


def _weights(run: str, out: Path, which: str, python: str | None, as_json: bool) -> None:
    from gpu_engine.launching import ask_torch
    from gpu_engine.places import verbs
    from gpu_engine.spec.schema import RunSpec

    if out.is_dir():
        raise click.UsageError(f"{out} is a folder; name a file in it")
    with telling(f"{out}: can't be read"):
        require_replaceable(out, b"PK\x03\x04", b'{"')  # torch's, and safetensors'
    found = verbs.find(run)
    plan = found.plan()
    spec = plan.spec if plan is not None else RunSpec()
    # Not the interpreter that the run's folder names: that would start what somebody has sent.
    try:
        with_torch = ask_torch.exporter(out, python)
    except ask_torch.NoTorch as err:
        named = f"; the run's own is said to be {spec.run.python}" if spec.run.python else ""
        raise UserError(f"{err}; --python PATH names one{named}") from None
    name = verbs.checkpoint_here(found, which, spec.train.best)
    told = ask_torch.export(found.checkpoints, out.absolute(), name, python=with_torch)
    for warning in told["warnings"]:
        echo(f"warning: {warning}", err=True)
    echo(in_json(told) if as_json else
         f"{out}: {units.counted(told['tensors'], 'tensor')} of step {told['step']}, "
         f"{units.size(told['bytes'])}")


def _study(words: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    from gpu_engine.export import exporter
    from gpu_engine.sweep import group

    if len(words) != 1:
        raise click.UsageError("--to optuna takes one sweep")
    done = exporter.optuna(group.find(words[0]), out)
    echo(in_json([done]) if as_json else
         f"{done.run}: {units.counted(done.rows, 'combination')}: {done.where}; optuna-dashboard "
         f"sqlite:///{done.where} shows it")


def _figures(words: tuple[str, ...], to: str, out: Path | None, project: str | None,
             as_json: bool) -> None:
    from gpu_engine.cli import ranks
    from gpu_engine.events.notices import NOT_FETCHED
    from gpu_engine.export import exporter
    from gpu_engine.places.verbs import find_each

    runs = find_each(words)
    exported: list[Exported] = []
    for run in runs:
        ranks.print_notices(run.state(), only=NOT_FETCHED, err=True)
        try:
            done = exporter.export(run, to, out, several=len(runs) > 1, project=project)
        except exporter.Failed as err:
            echo(f"{err.title}:\n  {err}", err=True)
            sys.exit(1)
        exported.append(done)
        if not as_json:
            _print(done)
    if as_json:
        echo(in_json(exported))


def _print(done: Exported) -> None:
    upto = f", up to step {units.count(done.last_step)}" if done.last_step is not None else ""
    state = f"; the run is {done.state}" if done.live else ""
    if done.rows:
        echo(f"{done.run}: {units.counted(done.rows, 'row')}{upto}{state}: {done.where}")
    else:
        echo(f"{done.run}: nothing is recorded yet{state}: {done.where}")
    if done.skipped:
        echo(f"warning: of its events, {units.counted(done.skipped, 'line')} that can't be read "
             "left out", err=True)
