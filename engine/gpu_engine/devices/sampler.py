"""Read every device at an interval, without ever making the caller wait.

`Sampler.latest` is always a complete snapshot, and getting it never blocks. Another process
(`probe_child`) calls the driver; here a daemon thread waits for its replies, with a time limit.
While a driver hangs, snapshots keep coming: with the devices' last figures, the machine's current
ones, and `problem` saying for how long the driver has not answered.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

from gpu_engine.devices import probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.host import HostReader
from gpu_engine.devices.records import Inventory, Sample, Snapshot

KEPT = 120
"""How many snapshots `Sampler.recent` holds: two minutes at one per second."""
_RETRY = 8
"""Intervals from the loss of a driver to the next try."""
_KILL_AFTER = 60.0
"""Seconds of silence after which a probe is killed and another one started."""


class Sampler:
    """Takes a snapshot of `inventory`'s devices and of the machine every `interval` seconds.

    `runs_folder`: the folder whose free disk space is read. If a GPU does not answer within
    `patience` seconds, its sample keeps the last figures and says so, and the other GPUs are read
    on.
    """

    def __init__(self, inventory: Inventory, runs_folder: Path | None = None,
                 interval: float = 1.0, patience: float = 2.0) -> None:
        self.inventory = inventory
        self.interval = interval
        self._runs_folder = runs_folder
        self._patience = patience
        self.recent: tuple[Snapshot, ...] = ()
        """The last snapshots with new readings of a device, newest last."""
        self.latest: Snapshot | None = None
        """The newest complete snapshot; None before the first."""
        self._looked = -math.inf
        """When a device was last read, monotonic time."""
        self._stop = threading.Event()
        self._probe: probe.Probe | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling; returns at once. A sampler can be started only once."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def age(self) -> float | None:
        """Seconds since a device was last read; None before the first."""
        return time.monotonic() - self._looked if self._looked > -math.inf else None

    def close(self) -> None:
        """Stop sampling. Takes at most 0.2 s, even if the driver hangs."""
        self._stop.set()
        if (child := self._probe) is not None:
            child.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(0.1)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        host = HostReader(self._runs_folder)
        backend = registry.load(self.inventory.source)
        if backend.asks_driver:
            self._run_probe(host)
            return
        readers = backend.open(self.inventory.devices)
        wait = min(0.25, self.interval)  # the first look soon: it needs a little time to compare
        while not self._stop.wait(wait):
            started = time.monotonic()
            by_id = {s.device.id: s for reader in readers for s in reader.read()}
            samples = tuple(by_id[d.id] for d in self.inventory.devices)
            self._publish(Snapshot(time.time(), samples, host.read()), started)
            wait = max(0.05, self.interval - (time.monotonic() - started))

    def _run_probe(self, host: HostReader) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            child = None
            try:
                self._probe = child = probe.acquire()
                if not self._stop.is_set():
                    child.send(probe.Watch(self.inventory.source, self.inventory.devices,
                                           self._patience))
                    while self._look(child, host, began):
                        pass
                problem = "the driver does not answer: trying again"
            except probe.Gone as error:
                problem = str(error)
            if child is not None:
                child.close()
            wait = self.interval * _RETRY
            while not self._stop.is_set():
                self._stale(host, problem, broken=True)
                self._stop.wait(wait)
                if child is None or child.ended():
                    break
                # No signal ends a process inside a hanging driver, and a new one would hang too.
                problem, wait = "the driver hangs, and the process that reads it can't end", 1.0

    def _look(self, child: probe.Probe, host: HostReader, began: float) -> bool:
        """Publish one reading of the devices, and wait for the next. Meanwhile, publish the
        machine's figures. False: the driver has been silent for too long, or it is time to stop.
        Raises `probe.Gone`."""
        asked = time.monotonic()
        child.send(probe.Look())
        while not self._stop.is_set():
            reply = child.receive(self.interval)
            now = time.monotonic()
            if isinstance(reply, probe.Looked):
                if reply.at > self._looked:
                    taken = max(s.taken for s in reply.samples if s.taken is not None)
                    self._publish(Snapshot(taken, reply.samples, host.read()), reply.at)
                else:  # no device has answered since
                    worst = next((s.problem for s in reply.samples if s.problem), None)
                    self._publish(Snapshot(self._taken(), reply.samples, host.read(),
                                           problem=worst), None)
                return not self._stop.wait(max(0.0, asked + self.interval - now))
            if now - asked > _KILL_AFTER:
                break
            if now - asked > self._patience + self.interval:
                waited = now - max(self._looked, began)
                self._stale(host, f"the driver has not answered for {waited:.0f} s")
        return False

    def _taken(self) -> float:
        return self.latest.taken if self.latest is not None else time.time()

    def _stale(self, host: HostReader, problem: str, broken: bool = False) -> None:
        """Publish the last figures again, with the problem. `broken`: leave the figures out, as
        they can't be true any more."""
        last = {s.device.id: s for s in self.latest.samples} if self.latest is not None else {}
        samples = []
        for device in self.inventory.devices:
            sample = last.get(device.id, Sample(device))
            if broken and not sample.lost:
                sample = Sample(device)
            samples.append(replace(sample, problem=sample.problem or problem))
        self._publish(Snapshot(self._taken(), tuple(samples), host.read(), problem=problem), None)

    def _publish(self, snapshot: Snapshot, looked: float | None) -> None:
        """`looked`: monotonic time of the reading; None if no device was read again."""
        self.latest = snapshot
        if looked is not None:
            self._looked = looked
            self.recent = (*self.recent, snapshot)[-KEPT:]


def take_several(inventory: Inventory, readings: int = 3, timeout: float = 20.0
                 ) -> tuple[Snapshot, ...]:
    """Take so many snapshots, a quarter of a second from each other, for a program without a
    screen.

    If the driver does not answer within `timeout` seconds there are fewer, but at least one. The
    very first snapshot is thrown away, as it has no rates; with `readings` 0 it is returned.
    """
    end = time.monotonic() + timeout
    with Sampler(inventory, interval=0.25, patience=timeout / 2) as sampler:
        while len(sampler.recent) <= readings and time.monotonic() < end:
            time.sleep(0.01)
    if sampler.recent:
        return sampler.recent[1:readings + 1] or sampler.recent[:1]
    if sampler.latest is not None:
        return (sampler.latest,)
    problem = f"the driver did not answer in {timeout:g} s"
    samples = tuple(Sample(d, problem=problem) for d in inventory.devices)
    return (Snapshot(time.time(), samples, problem=problem),)
