"""gpu-engine devices: the devices of this machine, how busy they are, and which are free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_engine.common import places

if TYPE_CHECKING:
    from gpu_engine.devices.records import Device

_MACHINE = ("source", "driver", "cuda", "problem", "inherited_visible")
"""Fields of the inventory that --json prints beside the devices."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts: bytes, shares 0 to 1, null = "
                                                      "unknown.")
def command(as_json: bool) -> None:
    """List the devices: the GPUs, or CPU slots if no GPU can be used."""
    from dataclasses import asdict

    from gpu_engine.common import units
    from gpu_engine.devices import availability, leases, sampler
    from gpu_engine.devices.discover import discover
    from gpu_engine.runs import folder

    inventory = discover()
    looks = sampler.take_several(inventory)
    snapshot = looks[-1]
    states = availability.judge_all(looks, leases.holders(places.leases_folder()))
    if as_json:
        out: dict[str, object] = {"devices": [
            asdict(s.device) | {k: v for k, v in asdict(s).items() if k != "device"}
            | asdict(states[s.device.id]) for s in snapshot.samples]}
        out |= {key: getattr(inventory, key) for key in _MACHINE}
        out["host"] = asdict(snapshot.host)
        click.echo(folder.dumps(out))
        return
    if inventory.problem:
        click.echo(f"note: {inventory.problem}", err=True)
    if inventory.inherited_visible is not None and not inventory.is_cpu:
        click.echo(f"note: {inventory.visible_variable}={inventory.inherited_visible} is set: "
                   "only those devices are offered; →0 marks the first of them", err=True)
    names = {s.device.id: _numbered(s.device) for s in snapshot.samples}
    first = max((len(n) for n in names.values()), default=4)
    width = max((len(s.device.name) for s in snapshot.samples), default=4)
    for s in snapshot.samples:
        state = states[s.device.id]
        memory = f"{units.gib(s.memory_used):>6} / {units.gib(s.memory_total)} GiB"
        why = "" if state.reason == state.state else f": {state.reason}"
        click.echo(f"{names[s.device.id]:<{first}}  {s.device.name:<{width}}  "
                   f"{units.share(s.utilization):>5}  {memory}  {state.state}{why}")


def _numbered(device: Device) -> str:
    """A device's id, with its position in the inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    return device.id + ("" if device.visible_index is None else f"→{device.visible_index}")
