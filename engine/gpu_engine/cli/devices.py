"""gpu-engine devices: what there is, how busy it is, and what may be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_engine.common import places

if TYPE_CHECKING:
    from gpu_engine.devices.records import Device

_MACHINE = ("source", "driver", "cuda", "problem", "inherited_visible")
"""What --json tells of the machine as a whole, beside its devices."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts: bytes, shares 0 to 1, null = "
                                                      "unknown.")
def command(as_json: bool) -> None:
    """List the devices: GPUs where a driver answers, else CPU slots."""
    from dataclasses import asdict

    from gpu_engine.common import units
    from gpu_engine.devices import availability, leases, sampler
    from gpu_engine.devices.discover import discover
    from gpu_engine.runs import folder as runs

    inventory = discover()
    looks = sampler.take_several(inventory)
    snapshot = looks[-1]
    freedom = availability.judge_all(looks, leases.holders(places.leases_folder()))
    if as_json:
        out: dict[str, object] = {"devices": [
            asdict(s.device) | {k: v for k, v in asdict(s).items() if k != "device"}
            | asdict(freedom[s.device.id]) for s in snapshot.samples]}
        out |= {key: getattr(inventory, key) for key in _MACHINE}
        out["host"] = asdict(snapshot.host)
        click.echo(runs.dumps(out))
        return
    if inventory.problem:
        click.echo(f"note: {inventory.problem}", err=True)
    if inventory.inherited_visible is not None and not inventory.is_cpu:
        click.echo(f"note: {inventory.visible_variable}={inventory.inherited_visible} was set: "
                   "only those are offered; →0 is the first of them", err=True)
    names = {s.device.id: _numbered(s.device) for s in snapshot.samples}
    first = max((len(n) for n in names.values()), default=4)
    width = max((len(s.device.name) for s in snapshot.samples), default=4)
    for s in snapshot.samples:
        free_or = freedom[s.device.id]
        memory = f"{units.gib(s.memory_used):>6} / {units.gib(s.memory_total)} GiB"
        why = "" if free_or.reason == free_or.state else f": {free_or.reason}"
        click.echo(f"{names[s.device.id]:<{first}}  {s.device.name:<{width}}  "
                   f"{units.share(s.utilization):>5}  {memory}  {free_or.state}{why}")


def _numbered(device: Device) -> str:
    """The id, and its place in the CUDA_VISIBLE_DEVICES that we were started with: "3→0"."""
    return device.id + ("" if device.visible_index is None else f"→{device.visible_index}")
