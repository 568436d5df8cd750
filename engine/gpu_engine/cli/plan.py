"""gpu-engine plan: what would run, without running it."""

from __future__ import annotations

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.cli.spec_options import (
    SpecChoice,
    WithCommand,
    grid_options,
    members_of,
    show,
    spec_options,
)
from gpu_engine.common.clean import clean


@click.command(cls=WithCommand)
@click.option("--json", "as_json", is_flag=True, help="The whole plan, for scripts.")
@grid_options
@spec_options
def command(choice: SpecChoice, as_json: bool, grid: tuple[str, ...], repeat: int) -> None:
    """Show what would run: batch arithmetic, devices, processes, and the command line for it. With
    --grid or --repeat: the runs of the sweep."""
    from gpu_engine.launching.launcher import prepare
    from gpu_engine.plan.command_line import typed

    if grid or repeat > 1:
        show(members_of(choice, grid, repeat), choice, as_json=as_json)
        return
    plan = prepare(choice.spec, base=choice.base, only_plan=True).plan.for_people()
    if as_json:
        echo(in_json(plan.to_dict()))
        return
    echo(f"{plan.name}: {plan.mode}, world size {plan.world_size}"
         + (f", backend {plan.backend}" if plan.backend != "none" else ""))
    for sentence in plan.sentences():
        echo(sentence)
    if plan.chosen is not None:
        echo(plan.chosen)
    if plan.code is not None:
        for line in (plan.code.sentence(), *(s.sentence() for s in plan.code.sendings)):
            echo(clean(line))
    if plan.not_compared is not None:
        echo(clean(f"code: {plan.not_compared}"))
    if plan.interpreter is not None:
        echo(clean(plan.interpreter.sentence()))
    for rank in plan.ranks:
        echo(rank.sentence())
    for warning in plan.warnings:
        echo(f"warning: {warning}")
    echo()
    for node, line in enumerate(plan.lines):
        echo((f"# node {node}\n" if len(plan.lines) > 1 else "") + line)
    echo()
    for process in plan.processes:
        echo(f"# process of rank {', '.join(map(str, process.ranks))}"
             + (f", on cores {','.join(map(str, process.cores))}" if process.cores else ""))
        echo(typed(process.env, process.unset, process.argv))
