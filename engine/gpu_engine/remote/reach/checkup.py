"""Can a host be used? Everything that keeps it from that, asked of all hosts at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from gpu_engine.common import paths
from gpu_engine.common.programs import version
from gpu_engine.devices.records import Inventory
from gpu_engine.remote.reach import nvidia_smi, protocol, reasons
from gpu_engine.remote.reach.call import Call, HostError, at_once
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.records import Host

CLOCKS = 1.0
"""Seconds that clocks may differ: beyond that, ages and durations of ranks on several machines
don't fit together."""


@dataclass(frozen=True, slots=True)
class Met:
    """What a host says of itself."""

    welcome: Welcome
    inventory: Inventory
    skew: float
    """Seconds that its clock is ahead of ours."""
    doubt: float
    """Seconds that this may be wrong by: half of what the question took."""
    opened: float
    code: protocol.CodeState | None


def meet(host: Host, folders: tuple[str, ...], *, slots: bool = False, code: str | None = None
         ) -> Met:
    """Ask `host` who it is, and for its devices (`slots`: of its processor) and the code of the
    name `code`. Raises Unreachable, Refused."""
    with Call(host, protocol.Hello(folders, True, slots, code)) as call:
        clock = call.expect(protocol.Clock).clock
        doubt = (time.time() - call.sent) / 2
        return Met(call.expect(Welcome), call.expect(protocol.Devices).inventory,
                   clock - (call.sent + doubt), doubt, call.opened,
                   call.expect(protocol.CodeState) if code is not None else None)


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
    return [c for c in at_once(_check, tuple(hosts)) if isinstance(c, Checkup)]


def _check(host: Host) -> Checkup:
    try:
        met = meet(host, host.folders(paths.here()))
    except HostError as err:
        inventory = None
        if reasons.lacks_program(host, err.reason):
            with suppress(nvidia_smi.NotSeen):
                inventory, _ = nvidia_smi.query(host)
        return Checkup(host, inventory=inventory, problems=(err.reason,))
    welcome, problems = met.welcome, []
    if welcome.version != version():
        problems.append(f"gpu-panel there is {welcome.version}, and {version()} here. "
                        f"{reasons.setup(host)}")
    if welcome.interpreter is None:
        problems.append(welcome.lacking or "no interpreter there has torch, which ranks need")
    if abs(met.skew) > CLOCKS + 2 * met.doubt:
        way = "ahead of" if met.skew > 0 else "behind"
        problems.append(f"its clock is {abs(met.skew):.0f} s {way} this machine's: set both by NTP")
    if met.inventory.problem:
        problems.append(met.inventory.problem)
    return Checkup(host, met.opened, 2 * met.doubt, welcome, met.inventory, met.skew,
                   tuple(problems))
