"""What is known of another machine's devices. Pure data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.remote.reach.records import Host

if TYPE_CHECKING:
    from gpu_engine.remote.reach.protocol import Welcome

KEPT = 120
"""Looks in `HostSeen.recent`: two minutes at one a second."""


@dataclass(frozen=True, slots=True)
class HostSeen:
    """What is known of a host's devices now."""

    host: Host
    state: Literal["asking", "seen", "read only", "away"] = "asking"
    """asking: not heard of yet; read only: without our program there; away: it does not answer,
    and what is shown was seen before."""
    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    recent: tuple[Snapshot, ...] = ()
    """The newest snapshots of the devices of `inventory`, oldest first."""
    freedom: Mapping[str, Availability] = field(default_factory=lambda: MappingProxyType({}))
    """By device id; a device that is absent has not been judged."""
    heard: float | None = None
    """Monotonic time here at which the newest look came."""
    welcome: Welcome | None = None
    """What the agent there said of the machine."""
    reason: str | None = None
    """Why it is away or read only, in a sentence to act on."""

    @property
    def can_run(self) -> bool:
        """Whether a run may be asked for there; `reason` says why not."""
        return self.state != "read only"

    def age(self, now: float | None = None) -> float | None:
        """Seconds since the newest look; None before the first."""
        if self.heard is None:
            return None
        return max(0.0, (time.monotonic() if now is None else now) - self.heard)
