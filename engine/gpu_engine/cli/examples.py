"""gpu-engine examples: which examples a step of a task was trained on."""

from __future__ import annotations

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.common import units

_SHOWN = 16
"""How many examples of a rank are printed."""


@click.command()
@click.argument("run")
@click.option("--step", type=click.IntRange(min=1), required=True, help="Which step.")
@click.option("--python", metavar="PATH", help="The interpreter with torch that works out the "
                                               "order. [default: that of a run here]")
@click.option("--json", "as_json", is_flag=True, help="For scripts: all of them.")
def command(run: str, step: int, python: str | None, as_json: bool) -> None:
    """Show on which examples each rank of RUN (an id, the beginning of one, or "last") was trained
    in a step, as numbers in the task's train_data(), with the rank's loss and the norm of its
    gradients there and before. For tasks, whose order is known from the seed."""
    from gpu_engine.diagnose.step_examples import trained_step
    from gpu_engine.launching import ask_torch
    from gpu_engine.launching.lookup import find

    found = trained_step(find(run), step)
    of_rank = ask_torch.examples(found, python=python)
    if as_json:
        echo(in_json({
            "step": step, "attempt": found.attempt, "epoch": found.epoch,
            "lr": found.ranks[0].at.lr, "ranks": [
                {"rank": r.rank, "loss": r.loss(step), "grad_norm": r.at.grad_norm,
                 "loss_before": r.before.loss if r.before else None,
                 "grad_norm_before": r.before.grad_norm if r.before else None,
                 "examples": numbers}
                for r, numbers in zip(found.ranks, of_rank, strict=True)]}))
        return
    echo(f"step {step}: attempt {found.attempt}, epoch {found.epoch + 1}, step {found.offset + 1} "
         f"of it, lr {found.ranks[0].at.lr}")
    for r, numbers in zip(found.ranks, of_rank, strict=True):
        before = r.before
        said = f"loss {units.loss(r.loss(step))}"
        if before is not None and before.loss is not None:
            said += f" (before: {units.loss(before.loss)})"
        if r.at.grad_norm is not None:
            said += f", gradient norm {r.at.grad_norm:.3g}"
        if before is not None and before.grad_norm is not None:
            said += f" (before: {before.grad_norm:.3g})"
        shown = ", ".join(map(str, numbers[:_SHOWN]))
        if len(numbers) > _SHOWN:
            shown += f" and {len(numbers) - _SHOWN} more (--json has all)"
        echo(f"rank {r.rank}: {said}; examples {shown}")
