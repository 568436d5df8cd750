"""The process that calls the driver, so that no other process has to wait for it.

`python -m gpu_engine.devices.probe_child`, started by `probe.Probe`.
Why a process and not a thread: a call that hangs inside the driver puts its thread into
uninterruptible sleep, and a process with such a thread can't end, so that a shell would wait for
the panel for ever. A process also keeps a crash inside the driver's library out of the panel.

Standard input is a socket, for requests and replies. When it ends, as it does with the parent, this
process ends at once. Each GPU has its own thread, so that the others can
still be read if one hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from gpu_engine.devices import probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Sample

IDLE_END = 3.0
"""Seconds without a request after which the process ends, if it watches no device."""


class Worker(threading.Thread):
    """The thread that reads one GPU whenever it is told to. It may hang in a driver call."""

    def __init__(self, reader: registry.Reader, patience: float, done: threading.Condition) -> None:
        super().__init__(name=f"read {reader.devices[0].id}", daemon=True)
        self.reader, self._patience, self._done = reader, patience, done
        self.since: float | None = None
        """When the current reading began, monotonic time; None: it is not reading."""
        self.latest: tuple[Sample, ...] | None = None
        self.looked = -math.inf
        """When the latest reading began, monotonic time, which is the same in all processes."""
        self.broken: str | None = None
        """Why the driver can't be used any more."""
        self._go = threading.Semaphore(0)
        self.start()

    def go(self) -> None:
        """Start a reading, unless one is going on."""
        if self.since is None:
            self.since = time.monotonic()
            self._go.release()

    def run(self) -> None:
        """The thread's loop: one reading for each call of `go`."""
        while self._go.acquire():
            try:
                self.latest = self.reader.read()
            except registry.DriverLost as lost:
                self.broken = str(lost)
            except Exception as error:  # noqa: BLE001  the other GPUs must still be read
                self.latest = tuple(Sample(d, problem=f"reading it failed: {error!r}",
                                           taken=time.time()) for d in self.reader.devices)
            with self._done:
                self.looked, self.since = self.since or time.monotonic(), None
                self._done.notify()

    def left(self) -> float:
        """For how many seconds more the current reading may be waited for; at most 0: no more."""
        since = self.since
        return 0.0 if since is None else since + self._patience - time.monotonic()

    def samples(self) -> tuple[Sample, ...]:
        """The latest samples; if the driver does not answer, they say for how long."""
        since, latest = self.since, self.latest
        waited = time.monotonic() - since if since is not None else 0.0
        if latest is None:
            text = f"the driver has not answered about it yet ({waited:.0f} s)"
            return tuple(Sample(d, problem=text) for d in self.reader.devices)
        if waited < self._patience:
            return latest
        text = f"the driver has not answered about it for {waited:.0f} s"
        # A device that was lost stays lost, even if the driver hangs now.
        return tuple(s if s.lost else replace(s, problem=text) for s in latest)


def answer(requests: queue.SimpleQueue[probe.Request], reply: Callable[[probe.Reply], None]
           ) -> None:
    """Answer requests until none has come for a while, or the driver must be loaded again."""
    workers: list[Worker] = []
    order: list[str] = []
    done = threading.Condition()
    try:
        while True:
            request = requests.get(timeout=None if workers else IDLE_END)
            if isinstance(request, probe.Discover):
                backend = registry.load(request.backend)
                reply(backend.discover(request.environ, request.patience))
            elif isinstance(request, probe.Watch):
                order = [d.id for d in request.devices]
                workers = [Worker(reader, request.patience, done)
                           for reader in registry.load(request.backend).open(request.devices)]
            else:
                for worker in workers:
                    worker.go()
                with done:  # the others do not wait for a GPU that is late
                    while (left := max(worker.left() for worker in workers)) > 0:
                        done.wait(left)
                if broken := next((w.broken for w in workers if w.broken), None):
                    raise registry.DriverLost(broken)
                by_id = {s.device.id: s for worker in workers for s in worker.samples()}
                reply(probe.Looked(tuple(by_id[i] for i in order),
                                   max(worker.looked for worker in workers)))
    except queue.Empty:
        return  # nobody needs us
    except registry.DriverLost as lost:
        reply(probe.Broken(str(lost)))  # a new process can load the driver's library again
    except BrokenPipeError:
        return
    except Exception as error:  # noqa: BLE001  the parent shows it
        reply(probe.Broken(f"asking the driver failed: {error!r}"))


def main() -> None:
    """Answer requests until there are no more."""
    parent = Connection(os.dup(0))
    requests: queue.SimpleQueue[probe.Request] = queue.SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                requests.put(parent.recv())
        os._exit(0)  # the parent has ended; other threads may hang for ever

    threading.Thread(target=listen, daemon=True).start()
    try:
        answer(requests, parent.send)
    finally:
        os._exit(0)  # without waiting for threads that hang in the driver


if __name__ == "__main__":
    main()
