"""Other machines' devices as a live stream: a thread a host, which nobody waits for.

`Watcher.seen` is always complete and reading it never blocks. A host that does not answer keeps
what was seen of it last, says why, and is tried again after growing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from gpu_engine.common import paths
from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.call import Call, HostError, Shell
from gpu_engine.remote.reach.hosts import Host

KEPT = 120
"""Looks in `HostSeen.recent`: two minutes at one a second."""
_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before a host is tried again, and again."""


@dataclass(frozen=True, slots=True)
class HostSeen:
    """What is known of a host's devices now."""

    host: Host
    state: Literal["asking", "seen", "away"] = "asking"
    """asking: not heard of yet; away: it does not answer, and what is shown was seen before."""
    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    recent: tuple[Snapshot, ...] = ()
    """The newest snapshots of the devices of `inventory`, oldest first."""
    freedom: Mapping[str, Availability] = field(default_factory=lambda: MappingProxyType({}))
    """By device id; a device that is absent has not been judged."""
    heard: float | None = None
    """Monotonic time here at which the newest look came."""
    welcome: protocol.Welcome | None = None
    """What the agent there said of the machine."""
    reason: str | None = None
    """Why it is away, in a sentence to act on."""
    waiting: int = 0
    """How many runs wait there for devices of this kind."""

    def age(self, now: float | None = None) -> float | None:
        """Seconds since the newest look; None before the first."""
        if self.heard is None:
            return None
        return max(0.0, (time.monotonic() if now is None else now) - self.heard)


class Watcher:
    """Watches hosts until it is closed."""

    def __init__(self, interval: float = 1.0) -> None:
        self._interval = interval
        self._watches: dict[str, _Watch] = {}

    @property
    def seen(self) -> tuple[HostSeen, ...]:
        """Of each host what is known, in the order in which they were asked for."""
        return tuple(watch.seen for watch in tuple(self._watches.values()))

    def watch(self, host: Host) -> None:
        """Begin to watch `host`, if that has not begun; returns at once."""
        if host.name in self._watches:
            return
        watch = self._watches[host.name] = _Watch(host, self._interval)
        threading.Thread(target=watch.run, name=f"watch {host.name}", daemon=True).start()

    def close(self) -> None:
        """Watch no more. May block while connections end."""
        watches = tuple(self._watches.values())
        for watch in watches:
            watch.over.set()
        for watch in watches:
            if watch.call is not None:
                watch.call.close()
            elif watch.shell is not None:
                watch.shell.give_up()


class _Watch:
    def __init__(self, host: Host, interval: float) -> None:
        self.seen = HostSeen(host)
        self.over = threading.Event()
        self.call: Call | None = None
        self.shell: Shell | None = None
        """The way there, as soon as one is tried."""
        self._interval = interval

    def run(self) -> None:
        failures = 0
        while not self.over.is_set():
            heard = self.seen.heard
            try:
                self._follow()
                reason = "it was closed"
            except HostError as err:
                reason = err.reason
            failures = 1 if self.seen.heard != heard else failures + 1
            self._update(state="away", reason=reason)
            self.over.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _follow(self) -> None:
        """Take in what our program there sends until nobody wants more. Raises HostError."""
        host, self.call = self.seen.host, None
        with Call(host, "devices", "--json", "--watch", str(self._interval),
                  folders=(*host.folders(paths.here()), "~"), opening=self._opening) as self.call:
            welcome = self.call.next(protocol.Welcome)
            if welcome.inventory != self.seen.inventory:  # what was seen of others is not of these
                self.seen = HostSeen(host, inventory=welcome.inventory)
            self._update(state="seen", reason=None, heard=time.monotonic(), welcome=welcome)
            while not self.over.is_set():
                look = self.call.next(protocol.Looked, None)
                self._update(snapshot=look.snapshot, freedom=look.freedom, waiting=look.waiting,
                             recent=(*self.seen.recent, look.snapshot)[-KEPT:],
                             heard=time.monotonic())

    def _opening(self, shell: Shell) -> None:
        self.shell = shell
        if self.over.is_set():  # since the last look at it
            shell.give_up()

    def _update(self, **changes: Any) -> None:
        self.seen = replace(self.seen, **changes)
