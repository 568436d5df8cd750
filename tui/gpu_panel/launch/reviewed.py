"""What the engine said of a draft, and which of its devices are not free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.devices.records import Device
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.source import DeviceSource

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.launching.launcher import Prepared
    from gpu_engine.plan.records import Interpreter, LaunchPlan


@dataclass(frozen=True, slots=True)
class Review:
    """The engine's answer to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """What Launch starts; None if there is a problem, or hosts have to be asked first."""
    unusable: bool = False
    """Whether a device can't be used at all, so that sharing it would not help."""
    over_hosts: LaunchPlan | None = None
    """What would run on hosts, by what was seen of them; None if the run uses no hosts."""

    interpreter: Interpreter | None = None
    """What a task's ranks run in here; None: nothing has torch, not known, or an own command."""

    @property
    def plan(self) -> LaunchPlan | None:
        """What would run; None if there is a problem."""
        return self.prepared.plan if self.prepared else self.over_hosts


@dataclass(frozen=True, slots=True)
class BusyDevice:
    """A ticked device that is not free."""

    device: Device
    state: str
    """Its name in `availability`."""
    reason: str
    host: str | None = None
    """None: this machine."""

    @property
    def can_be_shared(self) -> bool:
        """Whether the run could use it beside others, which needs the spec's permission."""
        return self.state in ("leased", "busy") and not self.device.is_cpu

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host is not None else ""
        return f"{self.device.label}{where}: {self.reason}"


async def busy_devices(source: DeviceSource, keys: Sequence[str]) -> dict[str, BusyDevice]:
    """The ticked devices that are not free now, by the key of their row; on a host, by what it said
    last. Those that have not been sampled long enough to be judged are left out. Raises OSError if
    the leases can't be read."""
    await source.judge()
    machines = {machine.host: machine for machine in source.machines}
    found: dict[str, BusyDevice] = {}
    for key in keys:
        host, name = row_keys.split(key)
        machine = machines.get(host)
        device = machine.find(name) if machine else None
        judged = (machine.freedom or {}).get(device.id) if machine and device else None
        if device is None or judged is None:
            continue
        # Any program can keep cores busy for a moment, so only a run of ours counts on a CPU slot.
        fine = ("free", "unknown", "busy") if device.is_cpu else ("free", "unknown")
        if judged.state not in fine:
            found[key if host is not None else device.id] = BusyDevice(
                device, judged.state, judged.reason, host)
    return found


def sharing_would_help(review: Review, taken: Mapping[str, BusyDevice]) -> bool:
    """Whether the only problems are ticked devices that other runs hold."""
    held = [name for name, device in taken.items() if device.state == "leased"]
    return not review.unusable and all(p.key == "devices.ids" and p.value in held
                                       for p in review.problems)
