"""Other machines' devices as a live stream: a thread a host, which nobody waits for.

`Watcher.seen` is always complete and reading it never blocks. A host that does not answer keeps
what was seen of it last, says why, and is tried again after growing pauses. One without our
program shows its GPUs by `nvidia-smi`, to be looked at only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gpu_engine import __version__
from gpu_engine.common import paths
from gpu_engine.devices.records import Inventory
from gpu_engine.remote.reach import nvidia_smi, protocol, reasons
from gpu_engine.remote.reach.call import Call, HostError
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.reach.remote_devices import KEPT, HostSeen

_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before a host is tried again, and again."""
_BY_SMI = 3.0
"""Seconds between two readings by nvidia-smi."""
_AGENT_AGAIN = 20
"""Looks by nvidia-smi after which our program is tried once more: it may have been set up."""


class Watcher:
    """Watches hosts until it is closed. `on_seen` is called in a host's thread with what is new of
    it."""

    def __init__(self, interval: float = 1.0, on_seen: Callable[[HostSeen], None] | None = None
                 ) -> None:
        self._interval, self._on_seen = interval, on_seen
        self._watches: dict[str, _Watch] = {}

    @property
    def seen(self) -> tuple[HostSeen, ...]:
        """Of each host what is known, in the order in which they were asked for."""
        return tuple(watch.seen for watch in tuple(self._watches.values()))

    def watch(self, host: Host) -> None:
        """Begin to watch `host`, if that has not begun; returns at once."""
        if host.name in self._watches:
            return
        watch = self._watches[host.name] = _Watch(host, self._interval, self._on_seen)
        threading.Thread(target=watch.run, name=f"watch {host.name}", daemon=True).start()

    def close(self) -> None:
        """Watch no more. May block while connections end."""
        watches = tuple(self._watches.values())
        for watch in watches:
            watch.over.set()
        for watch in watches:
            watch.close()


class _Watch:
    def __init__(self, host: Host, interval: float, on_seen: Callable[[HostSeen], None] | None
                 ) -> None:
        self.seen = HostSeen(host)
        self.over = threading.Event()
        self._host, self._interval, self._on_seen = host, interval, on_seen
        self._call: Call | None = None

    def run(self) -> None:
        failures = 0
        while not self.over.is_set():
            heard = self.seen.heard
            reason: str | None = self._follow()
            if reason is not None and reasons.lacks_program(self._host, reason):
                reason = self._by_smi(reason)
            if self.over.is_set() or reason is None:
                continue
            failures = 1 if self.seen.heard != heard else failures + 1
            self._update(replace(self.seen, state="away", reason=reason))
            self.over.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def close(self) -> None:
        call = self._call
        if call is not None:
            call.close()

    def _follow(self) -> str:
        """Take in what our program there sends until it ends. Returns why it has."""
        try:
            with Call(self._host, protocol.Watch(
                    self._interval, self._host.folders(paths.here()))) as self._call:
                welcome = self._call.expect(protocol.Welcome)
                if welcome.protocol != protocol.VERSION:
                    return (f"gpu-panel there is {welcome.version}, which this one "
                            f"({__version__}) can't talk to. {reasons.setup(self._host)}")
                for answer in self._call:
                    if self.over.is_set():
                        break
                    if isinstance(answer, protocol.Devices):
                        self._add_devices(welcome, answer.inventory)
                    elif isinstance(answer, protocol.Looked):
                        self._add_snapshot(answer)
        except HostError as err:
            return err.reason
        return "it was closed"

    def _add_devices(self, welcome: protocol.Welcome, inventory: Inventory) -> None:
        seen = self.seen
        if inventory != seen.inventory:  # what was seen of others is not of these
            seen = HostSeen(self._host, inventory=inventory)
        self._update(replace(seen, state="seen", reason=None, heard=time.monotonic(),
                             welcome=welcome))

    def _add_snapshot(self, look: protocol.Looked) -> None:
        recent = (*self.seen.recent, look.snapshot)[-KEPT:]
        self._update(replace(self.seen, state="seen", snapshot=look.snapshot, recent=recent,
                             freedom=look.freedom, heard=time.monotonic(), reason=None))

    def _by_smi(self, reason: str) -> str | None:
        """Look by nvidia-smi for a while; `reason`: why there is no more than that. Returns why
        there is not even that; None where there is, and more may be tried again."""
        for _ in range(_AGENT_AGAIN):
            try:
                inventory, snapshot = nvidia_smi.query(self._host)
            except nvidia_smi.NotSeen as err:
                same = str(err) in (reason, nvidia_smi.ABSENT)
                return reason if same else f"{reason}; nvidia-smi there: {err}"
            before = self.seen.recent if self.seen.inventory == inventory else ()
            self._update(HostSeen(self._host, "read only", inventory, snapshot,
                                  (*before, snapshot)[-KEPT:], heard=time.monotonic(),
                                  reason=reason))
            if self.over.wait(_BY_SMI):
                break
        return None

    def _update(self, seen: HostSeen) -> None:
        self.seen = seen
        if self._on_seen is not None and not self.over.is_set():
            self._on_seen(seen)
