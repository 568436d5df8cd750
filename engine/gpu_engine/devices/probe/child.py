"""The process that calls the driver, so that no other process has to wait for it.

`python -m gpu_engine.devices.probe.child`, started by `client.Probe`.
Why a process and not a thread: a call that hangs inside the driver puts its thread into
uninterruptible sleep, and a process with such a thread can't end, so that a shell would wait for
the panel for ever. A process also keeps a crash inside the driver's library out of the panel.

Requests come on standard input, replies go to standard output (see `messages`). When standard input
ends, as it does with the parent, this process ends at once. Each GPU has its own thread, so that
the others can still be read if one hangs.
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
from dataclasses import replace
from typing import BinaryIO, NamedTuple

from gpu_engine.devices.backends import registry
from gpu_engine.devices.backends.protocol import DriverLost, Reader
from gpu_engine.devices.probe import messages
from gpu_engine.devices.records import Sample

IDLE_END = 3.0
"""Seconds without a request after which the process ends, if it watches no device."""


class Opened(NamedTuple):
    """The readers for a `Watch` request are ready."""

    request: messages.Watch
    readers: Sequence[Reader]


Inbox = queue.SimpleQueue[messages.Request | messages.Found | messages.Broken | Opened | None]
"""None: a worker has finished a reading."""


class Worker(threading.Thread):
    """The thread that reads one GPU whenever it is told to. It may hang in a driver call."""

    def __init__(self, reader: Reader, done: Inbox, patience: float) -> None:
        super().__init__(name=f"read {reader.devices[0].id}", daemon=True)
        self.reader = reader
        self._patience = patience
        self.since: float | None = None
        """When the current reading began, monotonic time; None: it is not reading."""
        self.latest: tuple[Sample, ...] | None = None
        self.looked = -math.inf
        """When the latest reading began, monotonic time, which is the same in all processes."""
        self._go = threading.Semaphore(0)
        self._done = done

    def go(self) -> None:
        """Start a reading, unless one is going on."""
        if self.since is None:
            self.since = time.monotonic()
            self._go.release()

    def run(self) -> None:
        """The thread's loop: one reading for each call of `go`."""
        while True:
            self._go.acquire()
            try:
                self.latest = self.reader.read()
            except DriverLost as lost:
                self._done.put(messages.Broken(str(lost)))
            except Exception as error:  # noqa: BLE001  the other GPUs must still be read
                taken = time.time()
                self.latest = tuple(
                    Sample(d, problem=f"reading it failed: {error!r}", taken=taken)
                    for d in self.reader.devices
                )
            self.looked = self.since or time.monotonic()
            self.since = None
            self._done.put(None)

    def samples(self) -> tuple[Sample, ...]:
        """The latest samples; if the driver does not answer, they say for how long."""
        since = self.since
        waited = time.monotonic() - since if since is not None else 0.0
        latest = self.latest
        if latest is None:
            text = f"the driver has not answered about it yet ({waited:.0f} s)"
            return tuple(Sample(d, problem=text) for d in self.reader.devices)
        if waited < self._patience:
            return latest
        text = f"the driver has not answered about it for {waited:.0f} s"
        # A device that was lost stays lost, even if the driver hangs now.
        return tuple(s if s.lost else replace(s, problem=text) for s in latest)

    def late(self) -> bool:
        """Whether the current reading has taken longer than it may."""
        since = self.since
        return since is not None and time.monotonic() - since > self._patience


class Child:
    """Answers requests. Its thread is the only one that writes, and it never calls the driver."""

    def __init__(self, replies: BinaryIO) -> None:
        self._replies = replies
        self._inbox: Inbox = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._order: list[str] = []
        self._bus: frozenset[str] = frozenset()
        self._interval = 1.0
        self._patience = 2.0
        self._tick: float | None = None
        """When the latest reading of all GPUs began, monotonic time; None: nothing is watched."""
        self._sent = False
        """Whether that reading has been sent."""
        self._busy = False
        """Whether a thread is finding or opening devices."""

    def run(self, requests: BinaryIO) -> None:
        """Answer requests until none has come for a while, or the driver must be loaded again."""
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
                case messages.Discover():
                    self._begin(lambda m=message: messages.Found(
                        registry.load(m.backend).discover(m.environ, m.patience)))
                case messages.Watch():
                    self._begin(lambda m=message: Opened(
                        m, registry.load(m.backend).open(m.devices)))
                case messages.WatchBus():
                    self._bus = message.device_ids
                    self._send_bus()
                case messages.Found():
                    self._busy = False
                    self._send(message)
                case Opened():
                    self._busy = False
                    self._watch(message)
                case messages.Broken():
                    self._send(message)
                    return  # a new process can load the driver's library again
                case None:
                    if self._tick is not None and not self._sent and all(
                            w.since is None or w.late() for w in self._workers):
                        self._frame()

    def _send(self, reply: messages.Reply) -> None:
        self._replies.write(messages.pack(reply))
        self._replies.flush()

    def _listen(self, requests: BinaryIO) -> None:
        while True:
            head = requests.read(messages.HEAD.size)
            if len(head) < messages.HEAD.size:
                os._exit(0)  # the parent has ended; other threads may hang for ever
            self._inbox.put(pickle.loads(requests.read(messages.HEAD.unpack(head)[0])))

    def _begin(self, work: Callable[[], messages.Found | Opened]) -> None:
        """Do `work`, which may hang, in a thread. Its result comes back through the inbox."""

        def run() -> None:
            try:
                self._inbox.put(work())
            except DriverLost as lost:
                self._inbox.put(messages.Broken(str(lost)))
            except Exception as error:  # noqa: BLE001  the parent shows it
                self._inbox.put(messages.Broken(f"asking the driver failed: {error!r}"))

        self._busy = True
        threading.Thread(target=run, daemon=True).start()

    def _watch(self, opened: Opened) -> None:
        request = opened.request
        self._interval, self._patience = request.interval, request.patience
        self._order = [d.id for d in request.devices]
        self._workers = [Worker(r, self._inbox, request.patience) for r in opened.readers]
        self._send_bus()
        for worker in self._workers:
            worker.start()
        self._go(time.monotonic())

    def _send_bus(self) -> None:
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
            self._frame()  # a GPU is late: the others do not wait for it
        now = time.monotonic()
        if now >= self._tick + self._interval:
            # After a long pause (a laptop that slept, a late frame) no missed tick is made up for.
            self._go(max(self._tick + self._interval, now - 0.5 * self._interval))

    def _go(self, tick: float) -> None:
        self._tick, self._sent = tick, False
        for worker in self._workers:
            worker.go()

    def _frame(self) -> None:
        by_id = {s.device.id: s for w in self._workers for s in w.samples()}
        looked = max((w.looked for w in self._workers), default=-math.inf)
        self._send(messages.Looked(tuple(by_id[i] for i in self._order), looked))
        self._sent = True


def main() -> None:
    """Answer requests on standard input and output until there are no more."""
    # A library may print to standard output: that must not get between the replies.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        Child(replies).run(sys.stdin.buffer)
    except BrokenPipeError:
        pass
    finally:
        os._exit(0)  # without waiting for threads that hang in the driver


if __name__ == "__main__":
    main()
