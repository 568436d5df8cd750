"""The arguments of `run`, `plan` and `check` that choose a spec: a preset, `--set` and a command
after `--`; and those of `run` and `plan` that make a sweep of it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json, table
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.devices.records import Inventory
    from gpu_engine.spec.schema import RunSpec
    from gpu_engine.sweep.grid import Axis, Member
    from gpu_engine.sweep.kept import Search


@dataclass(frozen=True, slots=True)
class SpecChoice:
    """The spec that the arguments choose."""

    spec: RunSpec
    base: tuple[str, RunSpec] | None
    """(name, spec) of the preset that it is based on; None without a preset."""
    inventory: Inventory | None = None
    """The devices here, if whoever calls the command in this process has found them."""


class WithCommand(click.Command):
    """A command that accepts a person's own command line after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep everything after `--` in `ctx.meta["command"]`, and parse the rest."""
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta["command"] = args[:cut], args[cut + 1:]
        return super().parse_args(ctx, args)


def spec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: add the arguments that choose a spec. The function gets a `choice`. Who calls the
    command in this process can give one in `Context.meta["choice"]`, which the options then change,
    and reads there what the function got."""

    @click.argument("preset", required=False, shell_complete=tab.presets)
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
                  shell_complete=tab.sets,
                  help="Set any key of the preset, for example batch.size=512.")
    @click.option("--mode", help="Short for --set parallel.mode=…")
    @click.option("--devices", help="Short for --set devices.ids=0,1")
    @click.option("-n", "count", type=click.IntRange(1), metavar="N",
                  help="Short for --set devices.pick=N: the N freest devices.")
    @click.option("--nodes", type=click.IntRange(1), metavar="N",
                  help="Short for --set parallel.nodes=N.")
    @click.option("-o", "sbatch", multiple=True, metavar="KEY=VALUE",
                  help="On Slurm, an option of sbatch: account=vision, time=04:00:00, exclusive.")
    @click.option("--limit", "run_limit", metavar="TIME",
                  help="Stop and save after TIME: 90s, 5m, 1h30m.")
    @click.option("--give-way", is_flag=True,
                  help="With --queue, short for --set run.give_way=true: make room for others, and "
                       "go on later.")
    @click.option("--give-way-again", is_flag=True,
                  help="The same for a command that begins anew each time.")
    @click.option("--metric", "metrics", multiple=True, metavar="PATTERN",
                  help="Record a value that is printed: 'val_bpb: (\\S+)', or auto.")
    @click.pass_context
    def wrapped(ctx: click.Context, preset: str | None, sets: tuple[str, ...], mode: str | None,
                devices: str | None, count: int | None, nodes: int | None,
                sbatch: tuple[str, ...], run_limit: str | None, give_way: bool,
                give_way_again: bool, metrics: tuple[str, ...], **rest: Any) -> Any:
        assigned = assignments(sets=sets, mode=mode, devices=devices, count=count, nodes=nodes,
                               sbatch=sbatch, run_limit=run_limit, give_way=give_way,
                               give_way_again=give_way_again, metrics=metrics)
        command, form = ctx.meta.get("command"), ctx.meta.get("choice")
        if form is None and preset is None and not sets and not command:
            raise click.UsageError(
                "name a preset (gpu-engine presets lists them), a preset file, --set task.use=…, "
                "or your own command after --", ctx)
        choice = _changed(form, assigned) if form is not None \
            else choose_spec(preset, assigned, command)
        # An agent may run only what its person allows; at a shell nothing bounds it.
        choice = ctx.meta["choice"] = replace(choice, spec=_held([choice.spec])[0])
        return function(choice=choice, **rest)

    wrapped.__doc__, wrapped.__name__ = function.__doc__, function.__name__
    return wrapped


def assignments(*, sets: Sequence[str], mode: str | None, devices: str | None, count: int | None,
                run_limit: str | None, metrics: Sequence[str], nodes: int | None = None,
                sbatch: Sequence[str] = (), give_way: bool = False,
                give_way_again: bool = False) -> list[str]:
    """The `key=value`s that the options of `spec_options` stand for, in their order. Raises
    click.UsageError."""
    if count and devices:
        raise click.UsageError("-n takes the freest devices, --devices those that it names: give "
                               "one of them")
    if "auto" in metrics and len(metrics) > 1:
        raise click.UsageError("--metric auto records every number that is printed with a name: "
                               "leave out the other patterns, or auto")
    short = {"parallel.mode": mode, "devices.ids": devices, "run.limit": run_limit,
             "devices.pick": count, "parallel.nodes": nodes,
             "run.give_way": (give_way or give_way_again) and "true",
             "run.give_way_again": give_way_again and "true"}
    options = [text if "=" in text else f"{text}=" for text in sbatch]
    return [*(f"{key}={value}" for key, value in short.items() if value),
            *map(_metric, metrics), *(f"run.sbatch.{text}" for text in options),
            *spelled_out(sets)]


def sets_keys(param: click.Parameter) -> bool:
    """Whether an option stands for keys of the spec, so that the choice has what it says."""
    return param.name in assignments.__annotations__


def _metric(pattern: str) -> str:
    """The assignment for a `--metric`: the value is named as the pattern begins."""
    if pattern == "auto":
        return "run.metrics=auto"
    name = re.match(r"[A-Za-z_][\w/-]*", pattern)
    if name is None:
        raise click.UsageError(f"--metric {pattern!r}: it does not begin with the name of a value; "
                               f"give --set 'run.metrics.NAME={pattern}'")
    return f"run.metrics.{name[0]}={pattern}"


def spelled_out(sets: Iterable[str], spec: RunSpec | None = None) -> list[str]:
    """The `key=value`s with whole keys; says so where a section was left out. With the `spec` of a
    command, its own words keep their names."""
    from gpu_engine.spec.read import spelled_out

    ours = spec is None or spec.task.command is None
    whole = [spelled_out(given) if ours else given for given in sets]
    for given, meant in zip(sets, whole, strict=True):
        if given != meant:
            echo(f"{given} means {meant}", err=True)
    return whole


def choose_spec(preset: str | None, sets: list[str], command: list[str] | None = None
                ) -> SpecChoice:
    """The spec of a preset, changed by `sets` (`key=value`), that runs `command` if there is one.
    Raises UserError, SpecError."""
    from gpu_engine.plan.own_command import left_out
    from gpu_engine.spec import presets  # not for a panel's first frame
    from gpu_engine.spec.read import apply_sets, from_dict

    base = presets.load(preset) if preset not in (None, "-") else None
    data: dict[str, Any] = copy.deepcopy(base.data) if base else given() if preset else {}
    if command is not None:
        task = data.setdefault("task", {})
        task.pop("use", None)
        task.pop("params", None)
        task["command"] = list(command)
        data = left_out(data)  # what the preset's own task or command was told
        data["name"] = _name_of(command)  # and not as the preset is called
    apply_sets(data, sets)
    return SpecChoice(from_dict(data), (base.name, base.spec) if base else None)


def _changed(choice: SpecChoice, sets: list[str]) -> SpecChoice:
    """Raises SpecError."""
    from gpu_engine.spec.read import apply_sets, from_dict
    from gpu_engine.spec.write import to_dict

    data = to_dict(choice.spec, defaults=False)
    apply_sets(data, sets)
    return replace(choice, spec=from_dict(data))


def given() -> dict[str, Any]:
    """The spec that stands on standard input. Raises UserError."""
    import msgspec

    from gpu_engine.remote.there import wire

    try:
        return msgspec.convert(json.loads(wire.content(1 << 20)), dict)
    except (ValueError, RecursionError) as err:
        raise UserError(f"standard input: no preset as JSON: {clean(str(err))}") from None


def _name_of(command: list[str]) -> str:
    """The name for a run of a command: "train" for `python train.py` and `torchrun -m p.train`."""
    from pathlib import PurePath

    from gpu_engine.plan import own_command

    words = own_command.program(command) or command or ["run"]
    modules = [after.rpartition(".")[2] for word, after in pairwise(words) if word == "-m"]
    scripts = [PurePath(a).stem for a in command if a.endswith((".py", ".sh"))]
    return [*scripts, *modules, PurePath(words[0]).stem][0][:80] or "run"


def grid_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: add the options that make a sweep, which the function hands to `sweep_of`."""
    function = click.option(
        "--asha", type=click.IntRange(2), metavar="N",
        help="Short for --set run.halving=N --set run.asha=true.")(function)
    function = click.option(
        "--halving", type=click.IntRange(2), metavar="N",
        help="Short for --set run.halving=N.")(function)
    function = click.option(
        "--stop-worse", is_flag=True,
        help="Short for --set run.stop_worse=true.")(function)
    function = click.option(
        "--repeat", type=click.IntRange(1), default=1, metavar="N",
        help="Run each combination N times, with train.seed, train.seed + 1, …")(function)
    function = click.option(
        "--search", metavar="HOW",
        help="With --tries, tpe: ask Optuna for each combination when a place has room, by what "
             "those before it have done.")(function)
    function = click.option(
        "--tries", type=click.IntRange(1), metavar="N",
        help="Of the combinations draw N, by train.seed. A value may then be a range: "
             "log:1e-5..1e-2, 32..512:32.")(function)
    return click.option(
        "--grid", multiple=True, metavar="KEY=V1,V2", shell_complete=tab.sets,
        help="Vary a key: with several, every combination of their values is a run.")(function)


def members_of(choice: SpecChoice, *, grid: Sequence[str], repeat: int, stop_worse: bool,
               halving: int | None, asha: int | None, tries: int | None = None
               ) -> list[Member]:
    """The members of the sweep that the options ask for; none if they ask for no sweep. Raises
    SpecError."""
    if not grid and repeat == 1:
        if stop_worse or halving or asha:
            raise click.UsageError("--stop-worse, --halving and --asha go with --grid or --repeat")
        if tries:
            raise click.UsageError("--tries goes with --grid, whose values are tried")
        return []
    from gpu_engine.sweep.grid import members

    made = members(*_varied(choice, grid, stop_worse, halving, asha), repeat, tries)
    return [replace(m, spec=spec) for m, spec in zip(made, _held([m.spec for m in made]))]


def sweep_of(choice: SpecChoice, *, search: str | None, **options: Any
             ) -> tuple[list[Member], Search | None]:
    """`members_of`; of a search the first ones, and what asks for those behind them. Raises
    SpecError, UserError."""
    if search is None:
        return members_of(choice, **options), None
    if not options["grid"]:
        raise click.UsageError("--search goes with --grid, whose values are tried")
    if click.get_current_context().obj is not None:
        raise UserError("--search starts runs later, when nobody counts yours: an agent takes "
                        "--tries alone, which draws at random")
    from gpu_engine.sweep import search as searching

    varied = _varied(choice, options["grid"], options["stop_worse"], options["halving"],
                     options["asha"])
    made = searching.made(search, *varied, options["tries"], options["repeat"])
    asks, first = searching.first(made, choice.base)
    return first, asks


def _varied(choice: SpecChoice, grid: Sequence[str], stop_worse: bool, halving: int | None,
            asha: int | None) -> tuple[RunSpec, list[Axis]]:
    """The spec of a sweep, and what varies. Raises SpecError."""
    from gpu_engine.sweep.grid import parse

    if halving and asha:
        raise click.UsageError("--asha is --halving that waits for nobody: give one of them")
    run, whole = choice.spec.run, spelled_out(grid, choice.spec)
    run = replace(run, stop_worse=stop_worse or run.stop_worse,
                  halving=halving or asha or run.halving, asha=asha is not None or run.asha)
    return replace(choice.spec, run=run), [parse(text) for text in whole]


def _held(specs: list[RunSpec]) -> list[RunSpec]:
    """The specs as whoever calls the command in this process lets them run: `click.Context.obj`
    bounds them, or raises UserError."""
    bounds = click.get_current_context().obj
    return specs if bounds is None else bounds(specs)


def show(members: Sequence[Member], choice: SpecChoice, *, as_json: bool,
         search: Search | None = None) -> None:
    """Print what would be submitted. `search`: it asks for the rest. Raises SpecError if a member
    can't run here."""
    from gpu_engine.sweep import group

    plans = group.plans(members, base=choice.base)
    if as_json:
        echo(in_json([{"index": m.index, "name": m.spec.name, "values": m.values,
                       "seed": m.spec.train.seed, "plan": p.to_dict()}
                      for m, p in zip(members, plans, strict=True)]))
        return
    keys = list(members[0].values)
    rows = [["", *keys, "seed", "name"]]
    rows += [[str(m.index), *(clean(m.values[k], 32) for k in keys), str(m.spec.train.seed),
              clean(m.spec.name)] for m in members]
    for line in table(rows):
        echo(line)
    if search is not None:
        echo(f"{units.counted(search.of, 'run')}; the values of the others are asked for when a "
             "place has room")
    echo(f"{units.counted(len(members), 'run')}; the first, {plans[0].mode}:")
    for sentence in plans[0].sentences():
        echo(sentence)
    for warning in dict.fromkeys(w for p in plans for w in p.warnings):
        echo(f"warning: {warning}")
