"""This machine: gpu-engine devices, doctor and completion."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo, for_scripts, in_json
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.devices.records import Device, Inventory

_MACHINE = ("source", "driver", "cuda", "problem", "inherited_visible")
"""Fields of the inventory that --json prints beside the devices."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts: bytes, shares 0 to 1, null = "
                                                      "unknown.")
@click.option("--wait-free", "count", type=click.IntRange(min=1), metavar="N",
              help="Wait until N devices have been free in several readings in a row, and print "
                   "their ids: gpu-engine run ddp --devices $(gpu-engine devices --wait-free 2). "
                   "It takes none of them; run --queue does.")
@click.option("--free-gib", type=click.FloatRange(min=0, min_open=True), metavar="G",
              help="With --wait-free: only devices with G GiB of free memory.")
def devices(as_json: bool, count: int | None, free_gib: float | None) -> None:
    """List the devices: the GPUs, or CPU slots if no GPU can be used."""
    if count is not None:
        _wait_free(count, None if free_gib is None else int(free_gib * (1 << 30)), as_json)
        return
    if free_gib is not None:
        raise click.UsageError("--free-gib goes with --wait-free")
    from gpu_engine.devices import availability, leases, sampler
    from gpu_engine.devices.columns import IN_TABLE
    from gpu_engine.devices.discover import discover
    from gpu_engine.devices.leases.shared import why_not

    inventory = discover()
    snapshots = sampler.take_several(inventory)
    snapshot = snapshots[-1]
    states = availability.judge_all(snapshots, leases.holders(paths.leases_folder()))
    if as_json:
        out: dict[str, object] = {"devices": [
            asdict(s.device) | {k: v for k, v in asdict(s).items() if k != "device"}
            | asdict(states[s.device.id]) for s in snapshot.samples]}
        out |= {key: getattr(inventory, key) for key in _MACHINE}
        out["host"] = asdict(snapshot.host)
        echo(in_json(out))
        return
    for note in (inventory.problem, why_not()):
        if note:
            echo(f"note: {note}", err=True)
    if inventory.inherited_visible is not None and not inventory.is_cpu:
        echo(f"note: {inventory.visible_variable}={inventory.inherited_visible} is set: "
             "only those devices are offered; →0 marks the first of them", err=True)
    rows = [[_numbered(s.device), s.device.name, *(column.of(s) for column in IN_TABLE)]
            for s in snapshot.samples]
    least = [4, 4, *(column.width for column in IN_TABLE)]
    widths = [max(n, *(len(row[i]) for row in rows)) if rows else n for i, n in enumerate(least)]
    for row, s in zip(rows, snapshot.samples, strict=True):
        state = states[s.device.id]
        why = "" if state.reason == state.state else f": {state.reason}"
        echo("  ".join(f"{text:{'<' if i < 2 else '>'}{widths[i]}}" for i, text in enumerate(row))
             + f"  {state.state}{why}")


def _wait_free(count: int, free: int | None, as_json: bool) -> None:
    """Block until `count` devices have stayed free, with `free` bytes of free memory each, and
    print their ids."""
    from gpu_engine.devices import availability, leases
    from gpu_engine.devices.discover import discover
    from gpu_engine.devices.sampler import Sampler

    inventory = discover()
    _require_enough(inventory, count, free)
    steady, seen, told = availability.Steady(), None, None
    with Sampler(inventory, interval=_EVERY) as sampler:
        while True:
            time.sleep(_LOOK_EVERY)
            recent = sampler.recent
            if not recent or recent[-1] is seen:
                continue
            seen = recent[-1]
            holders = leases.holders(paths.leases_folder())
            freedom = availability.judge_all(recent, holders)
            able = steady.update(freedom)
            newest = [replace(shot, samples=tuple(s for s in shot.samples if s.device.id in able))
                      for shot in recent[-availability.READINGS:]]
            try:
                chosen = availability.freest(count, newest, holders, free=free)
                break
            except UserError:
                now = frozenset(key for key, found in freedom.items() if found.free)
                if now != told and len(recent) >= availability.READINGS:
                    told = now
                    echo(clean(f"waiting for {count}; free now: "
                               + (", ".join(sorted(now)) or "none")), err=True)
    ids = [device.id for device in chosen]
    echo(in_json({"ids": ids}) if as_json else ",".join(ids))


_EVERY, _LOOK_EVERY = 0.5, 0.1
"""Seconds between two snapshots, and between two checks for a new one."""


def _require_enough(inventory: Inventory, count: int, free: int | None) -> None:
    """Raise UserError where so many devices can never be free."""
    if inventory.problem and inventory.is_cpu and not inventory.hidden:
        raise UserError(f"no GPU can be used: {inventory.problem}")
    able = [d for d in inventory.devices if free is None or (d.memory_total or 0) >= free]
    if len(able) < count:
        what = "" if free is None else f" with {units.size(free)} of memory"
        raise UserError(f"--wait-free {count}: this machine has {len(able)} devices{what}")


def _numbered(device: Device) -> str:
    """A device's id, with its position in the inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    return device.id + ("" if device.visible_index is None else f"→{device.visible_index}")


_LOOKS = {"ok": ("ok     ", "green"), "note": ("note   ", "yellow"), "problem": ("PROBLEM", "red")}


@click.command()
@for_scripts
def doctor(as_json: bool) -> None:
    """Say what is installed, found, missing and broken on this machine, and what to type about it.

    Each line is ok, a note or a problem; what to type stands below it. Ends with 1 where there is a
    problem. Changes nothing. Each check has a time limit, so that a driver or a file system that
    hangs is a finding.
    """
    from gpu_engine.doctor import checks

    told: list[dict[str, str | None]] = []
    for name, findings in checks.examine(checks.every()):
        for number, f in enumerate(findings):
            told.append({"check": name, "level": f.level, "text": f.text, "cure": f.cure})
            if not as_json:
                word, colour = _LOOKS[f.level]
                echo(f"{'' if number else name:<10} ", (word, colour), f" {clean(f.text)}")
                if f.cure:
                    echo(f"{'':<18} → {clean(f.cure)}")
    count = sum(one["level"] == "problem" for one in told)
    if as_json:
        echo(in_json({"ok": not count, "findings": told}))
    else:
        echo("" if count else "\nnothing is wrong")
        if count:
            echo(f"{count} problem{'s' if count > 1 else ''}", err=True)
    sys.stdout.flush()
    sys.exit(1 if count else 0)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes gpu-engine and gpu-panel.

    \b
    ~/.bashrc: eval "$(gpu-engine completion bash)"
    ~/.zshrc, behind compinit: eval "$(gpu-engine completion zsh)"
    ~/.config/fish/config.fish: gpu-engine completion fish | source
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    for name in "gpu-engine", "gpu-panel":
        variable = f"_{name.replace('-', '_')}_COMPLETE".upper()
        echo(script(ctx.command, {}, name, variable).source())
