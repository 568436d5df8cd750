"""What `run` and `plan` are asked for: preset, `--set`s and a command behind `--`, as one spec."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from gpu_engine.spec import presets
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec


@dataclass(frozen=True, slots=True)
class Asked:
    spec: RunSpec
    base: tuple[str, RunSpec] | None
    """The preset that the typed line may name."""


class WithCommand(click.Command):
    """Takes what stands behind `--` as the person's own command, whole."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta["command"] = args[:cut], args[cut + 1:]
        return super().parse_args(ctx, args)


def spec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that choose a spec; the function gets `asked`."""

    @click.argument("preset", required=False)
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
                  help="Set any key of the preset, for example batch.size=512.")
    @click.option("--mode", help="Short for --set parallel.mode=…")
    @click.option("--devices", help="Short for --set devices.ids=0,1")
    @click.pass_context
    def wrapped(ctx: click.Context, preset: str | None, sets: tuple[str, ...], mode: str | None,
                devices: str | None, **rest: Any) -> Any:
        short = [f"parallel.mode={mode}"] if mode else []
        short += [f"devices.ids={devices}"] if devices else []
        command = ctx.meta.get("command")
        if preset is None and not sets and not command:
            raise click.UsageError(
                "name a preset (gpu-engine presets lists them), a preset file, --set task.use=…, "
                "or your own command behind --", ctx)
        return function(asked=ask(preset, [*short, *sets], command), **rest)

    wrapped.__doc__, wrapped.__name__ = function.__doc__, function.__name__
    return wrapped


def ask(preset: str | None, sets: list[str], command: list[str] | None = None) -> Asked:
    """Resolve to a spec. Raises UserError, SpecError."""
    base = presets.load(preset) if preset is not None else None
    data: dict[str, Any] = copy.deepcopy(base.data) if base else {}
    if command is not None:
        task = data.setdefault("task", {})
        task.pop("use", None)
        task.pop("params", None)
        task["command"] = list(command)
        if base is None:
            data.setdefault("name", _name_of(command))
    apply_sets(data, sets)
    return Asked(from_dict(data), (base.name, base.spec) if base else None)


def _name_of(command: list[str]) -> str:
    """A run of `python train.py` is called train."""
    from pathlib import PurePath

    scripts = [a for a in command if a.endswith((".py", ".sh"))]
    return PurePath((scripts or command or ["run"])[0]).stem[:80] or "run"
