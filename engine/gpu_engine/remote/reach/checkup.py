"""Can a host be used? Everything that keeps it from that, asked of all hosts at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from gpu_engine import __version__
from gpu_engine.common import paths
from gpu_engine.devices.records import Inventory
from gpu_engine.remote.reach import nvidia_smi, protocol, reasons
from gpu_engine.remote.reach.channel import (
    Channel,
    Refused,
    Unreachable,
    at_once,
    open_channel,
)
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.records import Host

CLOCKS = 1.0
"""Seconds that clocks may differ: beyond that, ages and durations of ranks on several machines
don't fit together."""
_LOOK = 45.0


@dataclass(frozen=True, slots=True)
class Checkup:
    """What asking a host gave."""

    host: Host
    opened: float | None = None
    """Seconds until our program there answered; None: it has not."""
    round_trip: float | None = None
    """Seconds for a question and its answer."""
    welcome: Welcome | None = None
    inventory: Inventory | None = None
    """Also where only nvidia-smi could be asked."""
    clock: float | None = None
    """Seconds that its clock is ahead of this machine's."""
    problems: tuple[str, ...] = ()
    """What keeps it from being used, in sentences to act on."""

    @property
    def ok(self) -> bool:
        """Whether runs can be started there."""
        return self.welcome is not None and not self.problems

    def to_dict(self) -> dict[str, object]:
        """For scripts."""
        found = msgspec.to_builtins(self)
        if found["welcome"] is not None:
            del found["welcome"]["kind"]
        return found | {"ok": self.ok}


def check(hosts: Iterable[Host]) -> list[Checkup]:
    """Ask all of `hosts` at once. Takes as long as the slowest, which has a limit."""
    return _together([c for c in at_once(_check, tuple(hosts)) if isinstance(c, Checkup)])


def _check(host: Host) -> Checkup:
    began = time.monotonic()
    try:
        with open_channel(host) as channel:
            return _ask(channel, time.monotonic() - began)
    except (Unreachable, Refused) as err:
        return _without(host, err.reason)


def _ask(channel: Channel, opened: float) -> Checkup:
    """Raises Unreachable, Refused."""
    host = channel.host
    welcome, clock, doubt = channel.greet(host.folders(paths.here()))
    trips = []
    for _ in range(3):  # the first may still wait for what the agent imports
        began = time.monotonic()
        channel.ask(protocol.Ping())
        trips.append(time.monotonic() - began)
    problems = []
    if welcome.protocol != protocol.VERSION or welcome.version != __version__:
        problems.append(f"gpu-panel there is {welcome.version}, and {__version__} here. "
                        f"{reasons.setup(host)}")
    if welcome.interpreter is None:
        problems.append(welcome.lacking or "no interpreter there has torch, which ranks need")
    if abs(clock) > CLOCKS + 2 * doubt:
        way = "ahead of" if clock > 0 else "behind"
        problems.append(f"its clock is {abs(clock):.0f} s {way} this machine's: set both by NTP")
    inventory = None
    if welcome.protocol == protocol.VERSION:
        devices = channel.stream(protocol.Watch(once=True)).next(_LOOK)
        inventory = devices.inventory if isinstance(devices, protocol.Devices) else None
        if inventory is not None and inventory.problem:
            problems.append(inventory.problem)
    return Checkup(host, opened, min(trips), welcome, inventory, clock,
                   tuple(problems))


def _without(host: Host, reason: str) -> Checkup:
    """What can be said of a host that no agent answers on."""
    inventory = None
    if reasons.lacks_program(host, reason):
        with suppress(nvidia_smi.NotSeen):
            inventory, _ = nvidia_smi.query(host)
    return Checkup(host, inventory=inventory, problems=(reason,))


def _together(found: Sequence[Checkup]) -> list[Checkup]:
    """What only shows when they are compared: one machine under two names, another torch."""
    out = []
    for i, one in enumerate(found):
        problems = list(one.problems)
        for other in found[:i]:
            this, that = one.welcome, other.welcome
            if this is None or that is None:
                continue
            if None not in (this.boot, this.network) \
                    and (this.boot, this.network) == (that.boot, that.network):
                problems.append(f"it is the same machine as {other.host.name}: name it once in a "
                                "run")
            elif this.torch is not None and that.torch is not None and this.torch != that.torch:
                problems.append(f"torch is {this.torch.version} there, and {that.torch.version} "
                                f"on {other.host.name}: ranks of one run need the same")
        out.append(replace(one, problems=tuple(problems)))
    return out
