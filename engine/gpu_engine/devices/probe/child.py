"""The process that talks to the driver, so that nobody else has to wait for it.

`python -c "from gpu_engine.devices.probe.child import main; main()"`, started by `probe.Probe`.
Why a process and not a thread: a call that hangs inside the driver puts its thread into
uninterruptible sleep, and a process with such a thread cannot end, so a shell would wait for the
panel for ever. It also keeps a crash inside the driver's library out of the panel.

Requests come on standard input, replies go to standard output, each a pickle after its length.
The end of standard input (the parent has gone, however it went) ends this process at once. It
holds a thread a GPU, so that one that hangs leaves the others readable.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import struct
import sys
import threading
import time
from dataclasses import replace
from typing import Any, BinaryIO

from gpu_engine.devices.backends import nvidia_find as nvml
from gpu_engine.devices.backends import nvidia_words as words
from gpu_engine.devices.backends.nvidia_read import GpuReader
from gpu_engine.devices.probe.calls import Trouble
from gpu_engine.devices.probe.owners import Owners
from gpu_engine.devices.records import Device, Sample

IDLE_END = 3.0
"""Seconds without a request after which a probe that watches nothing ends."""


def send(stream: BinaryIO, message: Any) -> None:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()


class Worker(threading.Thread):
    """Reads one GPU whenever it is told to; may be stuck in a call at any time."""

    def __init__(self, reader: GpuReader, done: queue.SimpleQueue[Any], patience: float) -> None:
        super().__init__(name=f"read {reader.devices[0].id}", daemon=True)
        self.reader = reader
        self._patience = patience
        self.since: float | None = None
        """Monotonic time since when the look under way lasts; None: at rest."""
        self.latest: tuple[Sample, ...] | None = None
        self.looked = -math.inf
        """Monotonic time, which all processes of a machine share, of the latest look."""
        self._go = threading.Semaphore(0)
        self._done = done

    def go(self) -> None:
        if self.since is None:
            self.since = time.monotonic()
            self._go.release()

    def run(self) -> None:
        while True:
            self._go.acquire()
            try:
                self.latest = self.reader.read()
            except Trouble as trouble:
                self._done.put(("broken", str(trouble)))
            except Exception as error:  # noqa: BLE001  one GPU's oddity is not the others'
                taken = time.time()
                self.latest = tuple(
                    Sample(d, problem=f"reading it failed: {error!r}", taken=taken)
                    for d in self.reader.devices
                )
            self.looked = self.since or time.monotonic()
            self.since = None
            self._done.put(("read", None))

    def samples(self) -> tuple[Sample, ...]:
        """The latest look, with the waiting said where the driver keeps us."""
        since = self.since
        waited = time.monotonic() - since if since is not None else 0.0
        latest = self.latest
        if latest is None:
            text = f"the driver has not answered for it yet ({waited:.0f} s)"
            return tuple(Sample(d, problem=text) for d in self.reader.devices)
        if waited < self._patience:
            return latest
        text = f"the driver has not answered for it for {waited:.0f} s"
        # A driver that hangs elsewhere does not bring back what it has called lost.
        return tuple(s if s.lost else replace(s, problem=text) for s in latest)

    def late(self) -> bool:
        """Whether it is known already that this GPU keeps us waiting."""
        since = self.since
        return since is not None and time.monotonic() - since > self._patience


class Child:
    """Answers requests; the only thread that writes. Nothing in it waits for the driver."""

    def __init__(self, replies: BinaryIO) -> None:
        self._replies = replies
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._driver: Any = None
        self._workers: list[Worker] = []
        self._order: list[str] = []
        self._bus: frozenset[str] = frozenset()
        self._owners: Owners | None = None
        self._interval = 1.0
        self._patience = 2.0
        self._tick: float | None = None
        self._started: float | None = None

    def run(self, requests: BinaryIO) -> None:
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while True:
            try:
                kind, value = self._inbox.get(timeout=self._wait())
            except queue.Empty:
                if self._tick is None and self._started is None:
                    return  # nobody needs us
                self._beat()
                continue
            if kind == "discover":
                self._begin(lambda v=value: ("inventory", nvml.discover(*v)))
            elif kind == "watch":
                self._begin(lambda v=value: ("ready", self._bind(*v)))
            elif kind == "bus":
                self._bus = value
                self._tell_bus()
            elif kind == "inventory":
                self._started = None
                send(self._replies, ("inventory", value))
            elif kind == "ready":
                self._started = None
                self._watch(*value)
            elif kind == "broken":
                send(self._replies, ("broken", value))
                return  # a fresh process starts the driver's library from nothing
            elif kind == "read":
                self._frame_if_done()

    def _listen(self, requests: BinaryIO) -> None:
        while True:
            head = requests.read(4)
            if len(head) < 4:
                os._exit(0)  # the parent has gone; other threads may be stuck for ever
            self._inbox.put(pickle.loads(requests.read(struct.unpack("<I", head)[0])))

    def _begin(self, work: Any) -> None:
        """Do what may hang in a thread; what it returns comes back through the inbox."""

        def run() -> None:
            try:
                self._inbox.put(work())
            except Exception as error:  # noqa: BLE001  the parent shows it
                self._inbox.put(("broken", f"asking the driver failed: {error!r}"))

        self._started = time.monotonic()
        threading.Thread(target=run, daemon=True).start()

    def _bind(self, *order: Any) -> tuple[Any, ...]:
        return (*order, *nvml.start())

    def _watch(
        self,
        devices: tuple[Device, ...],
        interval: float,
        patience: float,
        driver: Any,
        problem: str | None,
    ) -> None:
        if driver is None:
            self._inbox.put(("broken", problem or words.error(9)))
            return
        self._owners = Owners()
        self._interval, self._patience = interval, patience
        self._order = [d.id for d in devices]
        self._workers = []
        for index in dict.fromkeys(d.index for d in devices):
            same = [d for d in devices if d.index == index]
            reader = GpuReader(driver, same, self._owners)
            self._workers.append(Worker(reader, self._inbox, patience))
        self._tell_bus()
        for worker in self._workers:
            worker.start()
        self._tick = time.monotonic()
        self._sent = False
        self._go()

    def _tell_bus(self) -> None:
        for worker in self._workers:
            worker.reader.bus = any(d.id in self._bus for d in worker.reader.devices)

    def _wait(self) -> float:
        if self._tick is not None:
            due = self._tick + (self._interval if self._sent else self._patience)
            return max(0.0, due - time.monotonic())
        if self._started is not None:
            return 1.0
        return IDLE_END

    def _beat(self) -> None:
        if self._tick is None:
            return
        if not self._sent:
            self._frame()  # some GPU is late: the others do not wait for it
        now = time.monotonic()
        if now >= self._tick + self._interval:
            # A laptop that slept, or a late frame, leaves no ticks to catch up with.
            self._tick = max(self._tick + self._interval, now - 0.5 * self._interval)
            self._sent = False
            self._go()

    def _go(self) -> None:
        for worker in self._workers:
            worker.go()

    def _frame_if_done(self) -> None:
        if self._tick is None or self._sent:
            return
        if all(w.since is None or w.late() for w in self._workers):
            self._frame()

    def _frame(self) -> None:
        by_id = {s.device.id: s for w in self._workers for s in w.samples()}
        samples = tuple(by_id[i] for i in self._order)
        looked = max((w.looked for w in self._workers), default=-math.inf)
        send(self._replies, ("samples", (samples, looked)))
        self._sent = True
        if self._owners is not None:
            self._owners.forget_others(p.pid for s in samples for p in s.processes or ())


def main() -> None:
    # Whatever a library prints must not fall between the replies.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        Child(replies).run(sys.stdin.buffer)
    except BrokenPipeError:
        pass
    finally:
        os._exit(0)  # threads that are stuck in the driver are not waited for
