"""`--grid` and `--repeat` of `run` and `plan`: a sweep in place of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.cli.spec_options import SpecChoice, spelled_out
from gpu_engine.common.clean import clean

if TYPE_CHECKING:
    from gpu_engine.sweep.grid import Member


def grid_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: add the options that make a sweep. The function gets `grid` and `repeat`."""
    function = click.option(
        "--repeat", type=click.IntRange(1), default=1, metavar="N",
        help="Run each combination N times, with train.seed, train.seed + 1, …")(function)
    return click.option(
        "--grid", multiple=True, metavar="KEY=V1,V2",
        help="Vary a key: with several, every combination of their values is a run. "
             "log(1e-4,1e-2,5), linear(0,1,3), 16..256*2 and 1..9+2 stand for their values.",
        )(function)


def members_of(choice: SpecChoice, grid: Sequence[str], repeat: int) -> list[Member]:
    """The members of the sweep that the options ask for. Raises SpecError."""
    from gpu_engine.sweep import values
    from gpu_engine.sweep.grid import members

    whole = spelled_out(grid, choice.spec)
    return members(choice.spec, [values.parse(text) for text in whole], repeat)


def show(members: Sequence[Member], choice: SpecChoice, *, as_json: bool) -> None:
    """Print what would be submitted. Raises SpecError if a member can't run here."""
    from gpu_engine.cli.tables import table
    from gpu_engine.sweep import submit

    plans = submit.plans(members, base=choice.base)
    if as_json:
        echo(in_json([{"index": m.index, "name": m.spec.name, "values": m.values,
                       "seed": m.spec.train.seed, "plan": p.to_dict()}
                      for m, p in zip(members, plans, strict=True)]))
        return
    keys = list(members[0].values)
    repeats = any(m.repeat is not None for m in members)
    rows = [["", *keys, *(["seed"] if repeats else []), "name"]]
    rows += [[str(m.index), *(clean(m.values[k], 32) for k in keys),
              *([str(m.spec.train.seed)] if repeats else []), clean(m.spec.name)] for m in members]
    for line in table(rows):
        echo(line)
    echo(f"{len(members)} runs; the first, {plans[0].mode}:")
    for sentence in plans[0].sentences():
        echo(sentence)
    for warning in dict.fromkeys(w for p in plans for w in p.warnings):
        echo(f"warning: {warning}")
