"""The process that talks to the driver, so that nobody else has to wait for it.

`python -c "from gpu_engine.devices.probe.child import main; main()"`, started by `client.Probe`.
Why a process and not a thread: a call that hangs inside the driver puts its thread into
uninterruptible sleep, and a process with such a thread cannot end, so a shell would wait for the
panel for ever. It also keeps a crash inside the driver's library out of the panel.

Requests come on standard input, replies go to standard output (`messages`). The end of standard
input (the parent has gone, however it went) ends this process at once. It has a thread for each
GPU, so that one that hangs leaves the others readable.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from gpu_engine.devices.backends import registry
from gpu_engine.devices.backends.protocol import DriverLost, Reader
from gpu_engine.devices.probe.messages import (
    HEAD,
    Broken,
    Discover,
    Found,
    Looked,
    Reply,
    Request,
    Watch,
    WatchBus,
    pack,
)
from gpu_engine.devices.records import Sample

IDLE_END = 3.0
"""Seconds without a request after which a probe that watches nothing ends."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The readers for a request to watch."""

    request: Watch
    readers: Sequence[Reader]


@dataclass(frozen=True, slots=True)
class WasRead:
    """Some reader has come back from a look."""


Inbox = queue.SimpleQueue[Request | Found | Broken | Opened | WasRead]


class Worker(threading.Thread):
    """Reads one GPU whenever it is told to; may be stuck in a call at any time."""

    def __init__(self, reader: Reader, done: Inbox, patience: float) -> None:
        super().__init__(name=f"read {reader.devices[0].id}", daemon=True)
        self.reader = reader
        self._patience = patience
        self.since: float | None = None
        """Monotonic time at which the look under way began; None: at rest."""
        self.latest: tuple[Sample, ...] | None = None
        self.looked = -math.inf
        """Monotonic time, which all processes of a machine share, of the latest look."""
        self._go = threading.Semaphore(0)
        self._done = done

    def go(self) -> None:
        """Begin a look, unless one is under way."""
        if self.since is None:
            self.since = time.monotonic()
            self._go.release()

    def run(self) -> None:
        """The thread: a look each time it is told to."""
        while True:
            self._go.acquire()
            try:
                self.latest = self.reader.read()
            except DriverLost as lost:
                self._done.put(Broken(str(lost)))
            except Exception as error:  # noqa: BLE001  one GPU's oddity is not the others'
                taken = time.time()
                self.latest = tuple(
                    Sample(d, problem=f"reading it failed: {error!r}", taken=taken)
                    for d in self.reader.devices
                )
            self.looked = self.since or time.monotonic()
            self.since = None
            self._done.put(WasRead())

    def samples(self) -> tuple[Sample, ...]:
        """The latest look; where the driver keeps us waiting, with for how long."""
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
        self._inbox: Inbox = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._order: list[str] = []
        self._bus: frozenset[str] = frozenset()
        self._interval = 1.0
        self._patience = 2.0
        self._tick: float | None = None
        """When the latest look began, monotonic; None: nothing is watched."""
        self._sent = False
        """Whether that look has been sent."""
        self._busy = False
        """Whether the driver is being asked for what is not a look."""

    def run(self, requests: BinaryIO) -> None:
        """Serve until nobody needs it any more, or the driver has to be loaded afresh."""
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while True:
            try:
                message = self._inbox.get(timeout=self._wait())
            except queue.Empty:
                if self._tick is None and not self._busy:
                    return  # nobody needs us
                self._beat()
                continue
            match message:
                case Discover():
                    self._begin(lambda m=message: _find(m))
                case Watch():
                    self._begin(lambda m=message: _open(m))
                case WatchBus():
                    self._bus = message.device_ids
                    self._tell_bus()
                case Found():
                    self._busy = False
                    self._send(message)
                case Opened():
                    self._busy = False
                    self._watch(message)
                case Broken():
                    self._send(message)
                    return  # a fresh process starts the driver's library from nothing
                case WasRead():
                    self._frame_if_done()

    def _send(self, reply: Reply) -> None:
        self._replies.write(pack(reply))
        self._replies.flush()

    def _listen(self, requests: BinaryIO) -> None:
        while True:
            head = requests.read(HEAD.size)
            if len(head) < HEAD.size:
                os._exit(0)  # the parent has gone; other threads may be stuck for ever
            self._inbox.put(pickle.loads(requests.read(HEAD.unpack(head)[0])))

    def _begin(self, work: Callable[[], Found | Opened]) -> None:
        """Do what may hang in a thread; what it returns comes back through the inbox."""

        def run() -> None:
            try:
                self._inbox.put(work())
            except DriverLost as lost:
                self._inbox.put(Broken(str(lost)))
            except Exception as error:  # noqa: BLE001  the parent shows it
                self._inbox.put(Broken(f"asking the driver failed: {error!r}"))

        self._busy = True
        threading.Thread(target=run, daemon=True).start()

    def _watch(self, opened: Opened) -> None:
        request = opened.request
        self._interval, self._patience = request.interval, request.patience
        self._order = [d.id for d in request.devices]
        self._workers = [Worker(r, self._inbox, request.patience) for r in opened.readers]
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
        if self._busy:
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
        looked = max((w.looked for w in self._workers), default=-math.inf)
        self._send(Looked(tuple(by_id[i] for i in self._order), looked))
        self._sent = True


def _find(request: Discover) -> Found:
    backend = registry.load_reference(request.backend)
    return Found(backend.discover(request.environ, request.patience))


def _open(request: Watch) -> Opened:
    return Opened(request, registry.load_reference(request.backend).open(request.devices))


def main() -> None:
    """Serve on standard input and output until the parent is done."""
    # Whatever a library prints must not fall between the replies.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        Child(replies).run(sys.stdin.buffer)
    except BrokenPipeError:
        pass
    finally:
        os._exit(0)  # threads that are stuck in the driver are not waited for
